DROP TABLE crewai_agent_memory;
DROP TABLE crewai_flow_state;
DROP TABLE crewai_flow;
