drop table bothends_audit;
drop table bothends_effects;
