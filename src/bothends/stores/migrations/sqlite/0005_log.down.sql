alter table bothends_relays drop column wants;
alter table bothends_relays drop column source;
alter table bothends_relays drop column reason;
