"""The preset dictionary for zstd: text that agents' states contain often, so that a compressed body can refer to it.

Never change these bytes: a body can only be decompressed with the dictionary it was compressed with. Another dictionary needs
another codec number.
"""

from __future__ import annotations

WORDS = (
    b"the of and to in that is was for with as it on be at by this have from or had not but what all were "
    b"when we there can an your which their said if do will each about how up out them then she many some "
    b"so these would other into has more her two like him see time could no make than first been its who "
    b"now people my made over did down only way find use may water long little very after words called "
    b"just where most know get through back much before go good new write our used me man too any day same "
    b"right look think also around another came come work three word must because does part even place "
    b"well such here take why help put different away again off went old number great tell men say small "
    b"every found still between name should home big give air line set own under read last never us left "
    b"end along while might next sound below saw something thought both few those always looked show large "
    b"often together asked house world going want school important until form food keep children feet land "
    b"side without boy once animals life enough took four head above kind began almost live page got earth "
    b"need far hand high year mother light country father let night picture being study second soon story "
    b"since white ever paper hard near sentence better best across during today however sure knew it's try "
    b"told young sun thing whole hear example heard several change answer room sea against top turned "
    b"learn point city play toward five himself usually money seen didn't car morning I'm body upon family "
    b"later turn move face door cut done group true half red fish plants "
    b'{"type": "object", "properties": {"description": "string", "required": [], "title": "name", "default": null}}'
    b'{"role": "assistant", "content": [{"type": "text", "text": "", "input": {}, "tool_use_id": "toolu_", "is_error": false}]}'
    b'{"tool_calls": [{"name": "", "args": {}, "id": "call_", "type": "tool_call"}], "finish_reason": "stop", "model_name": "'
    b"\xa5index\xa4type\xa4text\xabstop_reason\xa8end_turn\xaamodel_name\xadfinish_reason\xa4stop\xaemodel_provider"
    b"\xafinput_token_details\xaecache_creation\xaacache_read\xb0output_token_details\xa9reasoning"
    b"\xacinput_tokens\xadoutput_tokens\xactotal_tokens\xb3langchain_core.documents.base\xa8Document\xacpage_content\xa8metadata"
    b"\xbdlangchain_core.messages.system\xadSystemMessage\x86\xa7content\xa4type\xa6system"
    b"\xbclangchain_core.messages.tool\xabToolMessage\x89\xa7content\xa4type\xa4tool\xactool_call_id\xa8artifact\xc0\xa6status\xa7success"
    b"\xa4name\xa4args\xa2id\xa4type\xa9tool_call"
    b"\xbdlangchain_core.messages.human\xacHumanMessage\x86\xa7content\xb1additional_kwargs\x80\xb1response_metadata\x80"
    b"\xa4type\xa5human\xa4name\xc0\xa2id\xd9$\xb3model_validate_json"
    b"\xbalangchain_core.messages.ai\xa9AIMessage\x89\xa7content\xb1additional_kwargs\x80\xb1response_metadata\x80"
    b"\xa4type\xa2ai\xa4name\xc0\xa2id\xd9)run-\xaatool_calls\x90\xb2invalid_tool_calls\x90\xaeusage_metadata\xc0\xb3model_validate_json"
)
"""The most frequent text is last: zstd encodes short distances in fewer bytes."""
