drop table {s}.audit, {s}.effects;
