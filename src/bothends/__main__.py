"""``python -m bothends``: the command line."""

from bothends.cli import main

if __name__ == "__main__":
    main()
