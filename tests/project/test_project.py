"""Files that have to agree with each other."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_pins_everything_that_the_project_asks_for_and_names_no_server():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+-]+", line) for line in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {normalized(re.match(r"[\w.-]+", line)[0]) for line in asked} - {"bothends"}
    assert names <= {normalized(line.split("==")[0]) for line in pins}


def test_the_extra_all_is_all_extras_but_the_test_tools():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (line,) = extras["all"]
    assert set(re.fullmatch(r"bothends\[(.+)\]", line)[1].split(",")) == extras.keys() - {"all", "dev"}


def test_kafka_in_docker_is_set_up_like_kafka_from_maven():
    """Only who may connect from where differs."""
    properties = dict(
        line.split("=", 1)
        for line in (ROOT / "scripts/kafka/server.properties").read_text().splitlines()
        if line and not line.startswith("#")
    )
    compose = {
        name.lower().replace("_", "."): value.strip('"')
        for name, value in re.findall(r"^ +KAFKA_(\w+): (.+)$", (ROOT / "compose.yaml").read_text(), re.MULTILINE)
    }
    addresses = {name for name in properties if "listener" in name or name == "controller.quorum.voters"}
    assert {name: compose.get(name) for name in properties.keys() - addresses} == {
        name: value for name, value in properties.items() if name not in addresses
    }
    assert addresses <= compose.keys()
    version = re.search(r"<artifactId>kafka_2.13</artifactId>\s*<version>(.+)</version>",
                        (ROOT / "scripts/kafka/pom.xml").read_text())[1]  # fmt: skip
    assert f"image: apache/kafka:{version}\n" in (ROOT / "compose.yaml").read_text()


def test_postgresql_in_docker_is_set_up_like_the_one_of_scripts_services():
    script, compose = (ROOT / "scripts/serving/postgresql.py").read_text(), (ROOT / "compose.yaml").read_text()
    for name, value in re.findall(r"- -c(\w+)=(\w+)$", compose, re.MULTILINE):
        assert re.search(rf'"{name}": "?{value}"?,', script), name
