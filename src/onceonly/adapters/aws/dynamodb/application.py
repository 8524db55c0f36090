"""Items of the application: which table and key an address means, and the operations that write one in a transaction.

    collection ""       an item of the table of the store: {shard: PREFIXdocument/KEY, key: KEY, document: {...}, version: 17}
    collection "orders" an item of the table `orders`, with the values of the key in the attributes of its primary key, the
                        fields of the document in attributes of their names, and the version in `version_attribute=`

The attributes of the primary key are fields of a document of `orders`. One in the table of the store has none of them.

The version is a number, as the object mappers of the AWS SDKs have it. Items that no such program wrote have none, and nothing
in a condition can ask for "no other attributes". So a write of an item that was read names all attributes that were read, the
version among them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct

from onceonly.adapters.aws.address import TABLE_NAME, DynamoDBAddress
from onceonly.adapters.aws.client import Client, ServiceError, code_of, translated
from onceonly.adapters.aws.dynamodb.client import DEFINITE, EXPIRES, KEY, SHARD, VERSION, time_to_live
from onceonly.adapters.aws.dynamodb.values import LARGEST, Attributes, Refused, attributes_of, body_of, item_size
from onceonly.model.errors import CommitRefused
from onceonly.ports.documents import Document, DocumentAddress, DocumentWrite, Version

__all__ = ["ApplicationItems", "ItemTable", "Operation"]

DOCUMENT = "document"
"""The attribute that has a document of the application, in the table of the store."""
MOST_COMPARED = 100
"""Attributes in one condition. DynamoDB takes 300 operators, and an attribute needs two."""
_LONGEST_KEYS = (2048, 1024)
"""The longest values of a partition key and of a sort key, in bytes."""
_VERSION_BITS = 52
"""So that the numbers are exact in every language, also when other programs add one."""
Operation = Mapping[str, Any]


class ItemTable(Struct, frozen=True, kw_only=True):
    """A table that has items of the application.

    `keys` are the names and types of its primary key. `expires` is the attribute of its time to live, or empty. `prefix` is not
    empty for the table of the store.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    version: str
    expires: str = ""
    prefix: str = ""

    def key(self, address: DocumentAddress) -> Attributes:
        """Return the primary key of a document. Raises Refused."""
        if self.prefix:
            return _own_key(self.prefix, address)
        if len(address.key) != len(self.keys):
            names = " and ".join(name for name, _ in self.keys)
            raise Refused(f"its key has {len(address.key)} values, and the key of table {self.name} is {names}")
        return {
            name: _key_value(f"{name} of table {self.name}", kind, value, longest)
            for (name, kind), value, longest in zip(self.keys, address.key, _LONGEST_KEYS, strict=False)
        }

    def item(self, write: DocumentWrite) -> Attributes:
        """Return the item that a write leaves, with a new version. Raises Refused."""
        key, fields, expires = self.key(write.address), attributes_of(write.body or b"{}"), write.expires
        taken: Attributes = {self.version: {"N": str(uuid4().int >> (128 - _VERSION_BITS))}}
        if expires and self.expires:
            taken = {**taken, self.expires: {"N": str(-(-expires // 1000))}}
        if not self.prefix:
            self._check_names(key, fields)
        item = {**({DOCUMENT: {"M": fields}} if self.prefix else fields), **taken, **key}
        if (size := item_size(item)) > LARGEST:
            raise Refused(f"its item is {size:,} bytes long; the limit of DynamoDB is {LARGEST:,}")
        return item

    def document(self, item: Attributes) -> Document:
        """Return the document in an item. Raises Refused for one that is not JSON."""
        attributes = {name: value for name, value in item.items() if name not in dict(self.keys)}
        kept = {name: value for name, value in item.items() if name not in {self.version, self.expires}}
        fields = kept.get(DOCUMENT, {}).get("M", {}) if self.prefix else kept
        return Document(body=body_of(fields), version=msgspec.json.encode(attributes).decode())

    def condition(self, expected: Version | None) -> Mapping[str, Any] | None:
        """Return the condition of a write. None for an expected version that no item can have. Raises Refused."""
        first = {"#key": self.keys[0][0]}
        if expected is None:
            return {}
        if not expected:
            return {"ConditionExpression": "attribute_not_exists(#key)", "ExpressionAttributeNames": first}
        try:
            read = msgspec.json.decode(expected, type=dict[str, dict[str, Any]])
        except msgspec.DecodeError:
            return None
        if len(read) > MOST_COMPARED:
            if self.version not in read:
                raise Refused(
                    f"it has {len(read)} attributes and was read, and at most {MOST_COMPARED} can be compared. Give it the "
                    f"attribute {self.version}, or write it without reading it"
                )
            read = {self.version: read[self.version]}
        compared = [f"#{number} = :{number}" for number in range(len(read))]
        names = {f"#{number}": name for number, name in enumerate(read)}
        if self.version not in read:
            compared.append("attribute_not_exists(#version)")
            names["#version"] = self.version
        return {
            "ConditionExpression": " AND ".join(["attribute_exists(#key)", *compared]),
            "ExpressionAttributeNames": {**first, **names},
            **(
                {"ExpressionAttributeValues": {f":{number}": value for number, value in enumerate(read.values())}}
                if read
                else {}
            ),
        }

    def _check_names(self, key: Attributes, fields: Attributes) -> None:
        for name in fields.keys() & {self.version, self.expires}:
            raise Refused(f"{name!r} is an attribute of every item of table {self.name}, and not a field of documents")
        for name in fields.keys() & key.keys():
            if fields[name] != key[name]:
                raise Refused(f"its field {name!r} is not the value of its key in table {self.name}")


class ApplicationItems:
    """The tables of a region that have items of the application. Each is described once, with the right DescribeTable."""

    def __init__(self, client: Client, place: DynamoDBAddress) -> None:
        self._client, self._place = client, place
        own = ItemTable(
            name=place.table, keys=((SHARD, "S"), (KEY, "S")), version=VERSION, expires=EXPIRES, prefix=place.prefix
        )
        self._own = own
        self._tables: dict[str, ItemTable] = {}

    async def table(self, collection: str) -> ItemTable:
        """Return the table of a collection. Raises CommitRefused, CommitFailed, OutcomeUnknown."""
        if not collection:
            return self._own
        if problem := self._problem_of_collection(collection):
            raise CommitRefused(problem)
        found = self._tables.get(collection)
        if found is None:
            found = self._tables[collection] = await self._describe(collection)
        return found

    def forget(self, collections: Sequence[str]) -> None:
        """Describe these tables again when they are used next: something in them is not as it was described."""
        for each in collections:
            self._tables.pop(each, None)

    def problem_of(self, write: DocumentWrite) -> str:
        """Return why a write can never be made, as far as it is known without a request."""
        if problem := self._problem_of_collection(write.address.collection):
            return problem
        address, table = write.address, self._tables.get(write.address.collection) if write.address.collection else self._own
        if table is None:  # not described yet: any key, and no time to live
            names = tuple((f"\0{number}", "N" if isinstance(part, int) else "S") for number, part in enumerate(address.key))
            if len(names) not in {1, 2}:
                return f"its key has {len(names)} values, and the key of a table has one or two"
            table = ItemTable(name=address.collection, keys=names, version=self._place.version_attribute)
        try:
            table.condition(write.expected)
            if write.body is None:
                table.key(address)
            else:
                table.item(write)
        except Refused as error:
            return str(error)
        return ""

    async def operation(self, write: DocumentWrite) -> Operation | None:
        """Return a write as part of a transaction, None if its document cannot have the expected version.

        Raises CommitRefused, CommitFailed, OutcomeUnknown.
        """
        table = await self.table(write.address.collection)
        try:
            condition = table.condition(write.expected)
            item = table.key(write.address) if write.body is None else table.item(write)
        except Refused as error:
            raise CommitRefused(f"cannot write document {write.address.key!r:.80}: {error}") from error
        if condition is None:
            return None
        name, what = ("Delete", "Key") if write.body is None else ("Put", "Item")
        return {name: {"TableName": table.name, what: item, **condition}}

    def _problem_of_collection(self, collection: str) -> str:
        if collection == self._place.table:
            return f"{collection} is the table of the store: use collection='' for documents in it"
        if collection and not re.fullmatch(TABLE_NAME, collection):
            return f"{collection!r:.80} cannot be a table of DynamoDB: use 3 to 255 letters, digits, and any of _ . -"
        return ""

    async def _describe(self, name: str) -> ItemTable:
        with translated(f"reading the settings of table {name}", DEFINITE):
            try:
                table = (await self._client.describe_table(TableName=name))["Table"]
                expires = await time_to_live(self._client, name)
            except ServiceError as error:
                if code_of(error) != "ResourceNotFoundException":
                    raise
                region = self._place.access.region
                raise CommitRefused(f"table {name} does not exist in {region}: create it, or correct collection=") from error
        types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
        schema = sorted(table["KeySchema"], key=lambda each: each["KeyType"])  # HASH before RANGE
        keys = tuple((each["AttributeName"], types[each["AttributeName"]]) for each in schema)
        return ItemTable(name=name, keys=keys, version=self._place.version_attribute, expires=expires or "")


def _own_key(prefix: str, address: DocumentAddress) -> Attributes:
    """Return where a document is in the table of the store. No shard of the store's documents has more than two characters."""
    if len(address.key) != 1 or not isinstance(address.key[0], str):
        raise Refused("a document in the table of the store has one text as its key. Use a table of your own for other keys")
    value = _key_value(f"{KEY} of the table of the store", "S", address.key[0], _LONGEST_KEYS[1])
    return {SHARD: {"S": f"{prefix}document/{address.key[0]}"}, KEY: value}


def _key_value(name: str, kind: str, value: str | int, longest: int) -> Mapping[str, Any]:
    if kind == "S" and isinstance(value, str):
        if (size := len(value.encode())) > longest:
            raise Refused(f"its key is {size} bytes long; the limit of {name} is {longest}")
        return {"S": value}
    if kind == "N" and isinstance(value, int):
        ((_, number),) = attributes_of(b'{"key":%d}' % value).items()
        return number
    wanted = {"S": "a text", "N": "a number"}.get(kind, "binary, which no document can have")
    raise Refused(f"its key is {value!r:.80}, and {name} is {wanted}")
