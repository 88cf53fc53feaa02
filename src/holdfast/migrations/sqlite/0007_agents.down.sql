DROP TABLE core_blocks;
DROP TABLE agent_tags;
DROP TABLE agents;
