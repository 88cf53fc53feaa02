DROP TABLE rewound_calls;
DROP TABLE rewound_steps;
DROP TABLE rewinds;
