"""Redaction: what is masked, how, and what is left alone."""

import copy
import logging
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from hmac import digest as hmac_digest
from random import Random
from uuid import UUID

import phonenumbers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phonenumbers import PhoneNumberFormat as Format
from phonenumbers import PhoneNumberType as Line

from semel import redact
from semel.core.keys import canonical, fingerprint
from semel.errors import InvalidOption, InvalidPayload, MissingExtra, UsageError
from semel.redact import REGIONS, Digest, Redactor, digest, pseudonym
from semel.redact import numbers as scanning
from semel.redact import redactor as redacting
from semel.redact.numbers import NumberingPlans, WorkLimit, numbering_plans
from semel.redact.patterns import (
    credentials,
    emails,
    is_harmless,
    links,
    order_numbers,
    tracking_numbers,
)
from semel.redact.text import MarkedText, beginning
from tests.acceptance import test_redact_planted as planted
from tests.amounts import amount

REDACTOR = Redactor()
text = REDACTOR.text

# --- The masks -------------------------------------------------------------------------------------


@pytest.mark.seed("R7")
@pytest.mark.parametrize(
    ("given_text", "masked"),
    [
        ("Write to ann@example.com.", "Write to ***@***."),
        ("Call +1 202-555-0123 now", "Call ***-***-0123 now"),
        ("Where is order 1234567?", "Where is order ***4567?"),
        ("Tracking number 1Z999AA10123456784", "Tracking number ***"),
        ("See https://track.example.com/p/12345.", "See ***."),
    ],
)
def test_each_kind_has_the_mask_of_the_standard(given_text, masked):
    assert text(given_text) == masked


@pytest.mark.parametrize(
    "address",
    [
        "ann@example.com",
        "ann.b+shop@sub.example.co.uk",
        "ANN_B@EXAMPLE.COM",
        "o'brien@example.com",
        "a@b.co",
        '"ann b"@example.com',
        '"a@b"@example.com',
        "ann@[192.168.7.12]",
        "ann@xn--mller-kva.de",
        "x%y@example.com",
        "jörg@müller.de",
        "почта@пример.рф",
        "用户@例子.广告",
        "अजय@डाटा.भारत",
        "bounce+ann=example.org@list.example.com",
        "ann\uff20example\uff0ecom",
        "a\u200bnn@exam\u00adple.com",
        "ann%40example.com",
        "ann@example.com@example.org",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "Mail {} please", "<{}>", "({}).", "mailto:{}", "to={},", "'{}'", "*{}*"]
)
def test_an_email_address_goes_whole(address, around):
    masked = text(around.format(address))
    # The stars of *emphasis* may be taken for a part of the address, which may hold stars too.
    assert masked.replace("****@", "***@") == around.format("***@***").replace("****@", "***@")


@pytest.mark.parametrize(
    "address",
    [
        "ann at example.com",
        "ann @ example.com",
        "ann@ example.com",
        "ann @example.com",
        "Ann.B+shop at mail.example.co.uk",
        "ANN AT EXAMPLE.COM",
        "ann (at) example.com",
        "ann [at] example [dot] com",
        "ann(at)example(dot)com",
        "ann at example dot com",
        "ann\uff20 example\uff0ecom",
        "info at example.com",
        "ann @ 例子.中国",
    ],
)
@pytest.mark.parametrize("around", ["{}", "Mail {} please", "<{}>", "({}).", "to: {},", "My email is {}!"])
def test_an_email_address_goes_whole_though_its_at_sign_is_spelled_out_or_stands_apart(address, around):
    assert text(around.format(address)) == around.format("***@***")


def test_a_word_that_is_no_name_is_an_address_where_the_text_says_so():
    assert text("Our shop at example.com") == "Our shop at example.com"
    assert text("my e-mail: shop at example.com") == "my e-mail: ***@***"
    assert text("write to shop (at) example.com") == "write to ***@***"


def test_a_link_does_not_end_at_an_encoded_blank():
    assert text("https://example.com/?q=Ann%20Smith%2012345 x") == "*** x"
    assert text("https%3A%2F%2Fexample.com%2Fann x") == "*** x"


def test_the_query_of_a_mailto_link_goes_with_the_address():
    assert text("mailto:ann@example.com?subject=About%20Bob x") == "mailto:***@*** x"


def test_a_form_keeps_its_names():
    assert text("from=%2B14155550123&email=ann%40example.com&n=3") == "from=***-***-0123&email=***@***&n=3"


@pytest.mark.parametrize(
    ("number", "last"),
    [
        ("+49 171 2345678", "5678"),
        ("+49 (0)171 2345678", "5678"),
        ("+491712345678", "5678"),
        ("0171 2345678", "5678"),
        ("0171/2345678", "5678"),
        ("0171-234 56 78", "5678"),
        ("0049 171 2345678", "5678"),
        ("(202) 555-0123", "0123"),
        ("202.555.0123", "0123"),
        ("1-202-555-0123", "0123"),
        ("2025550123", "0123"),
        ("(123) 456-7890", "7890"),
        ("123-456-7890", "7890"),
        ("+1 (202) 555-0123", "0123"),
        ("+12025550123", "0123"),
        ("06 12 34 56 78", "5678"),
        ("06.12.34.56.78", "5678"),
        ("612 345 678", "5678"),
        ("8 (912) 345-67-89", "6789"),
        ("13812345678", "5678"),
        ("03-1234-5678", "5678"),
        ("(11) 96123-4567", "4567"),
        ("011 15-2345-6789", "6789"),
        ("491712345678", "5678"),
        ("+999 123 456 789", "6789"),
        ("%2B49%20171%202345678", "5678"),
        ("+49\u00a0171\u00a02345678", "5678"),
        ("+49\u2011171\u20112345678", "5678"),
        ("+4\u200b9 171 23\u206045678", "5678"),
        ("\uff10\uff11\uff17\uff11 \uff12\uff13\uff14\uff15\uff16\uff17\uff18", "5678"),
        ("٠١٧١٢٣٤٥٦٧٨", "5678"),
        ("1\ufe0f\u20e32025550123", "0123"),
        ("0 1 7 1 2 3 4 5 6 7 8", "5678"),
        ("0171+2345678", "5678"),
        ("+1 202-555-0123 ext. 55", "0123"),
        ("+1-202-555-0123;ext=5512", "0123"),
        ("(202) 555-0123 x5512", "0123"),
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "Hi, {}, bye", "({})", "tel:{}", "\u202a{}\u202c", "电话{}。", "<{}>", "“{}”"]
)
def test_a_phone_number_keeps_its_last_four_digits(number, last, around):
    expected = around.format(f"***-***-{last}").replace("\u202c", "")
    assert text(around.format(number)).replace("\u202c", "") == expected


@pytest.mark.parametrize(
    "words",
    [
        "Call me at 555-0123",
        "tel: 555 0123",
        "Phone number is 5550123",
        "Fax 555-0123",
        "my mobile: 555.0123",
        "WhatsApp 5550123",
        "Tel.5550123",
        "tel5550123",
        "Telefon: 5550123",
        "teléfono 555-0123",
        "land line 555-0123",
    ],
)
def test_a_word_for_phone_is_enough(words):
    assert text(words).endswith("***-***-0123")
    assert "555" not in text(words)


def test_a_word_for_phone_holds_for_the_number_after_the_next_or():
    assert text("Call 555-0123 or 555-0124.") == "Call ***-***-0123 or ***-***-0124."


def test_without_such_a_word_seven_digits_are_no_phone_number():
    assert text("555-0123 and 5550123") == "555-0123 and 5550123"


def test_numbers_that_may_overlap_go_together():
    """Whether 61 belongs to the number cannot be told, and no part of a number may be left over."""
    masked = text("61 202 555 0123 61")
    assert masked.count("***-***-") == 1
    assert len(masked) == len("***-***-0123")


@pytest.mark.parametrize(
    ("order", "masked"),
    [
        ("#12345", "***2345"),
        ("# 12345", "***2345"),
        ("#A-10023", "***0023"),
        ("#1001", "***"),
        ("#SHOP-10011", "***0011"),
        ("order 12345", "order ***2345"),
        ("Order #12345", "Order ***2345"),
        ("ORDER NO. A-10023", "ORDER NO. ***0023"),
        ("order number: 998877", "order number: ***8877"),
        ("Order #: 998877", "Order #: ***8877"),
        ("order no 777", "order no ***"),
        ("order: 4711", "order: ***"),
        ("my order is 12345", "my order is ***2345"),
        ("orders 12345, 12346 and 12347", "orders ***2345, ***2346 and ***2347"),
        ("order A1B2C3D4", "order ***"),
        ("ORD-2026-000123", "***0123"),
        ("ord_12345", "***2345"),
        ("PO-4711-22", "***1122"),
        ("SO48215577", "***5577"),
        ("so482155", "***2155"),
        ("PO48215577-2", "***5772"),
        ("order12345", "***2345"),
        ("112-1234567-7654321", "***4321"),
        ("orderId=12345", "orderId=***2345"),
        ("shopOrderId: 12345", "shopOrderId: ***2345"),
        ('{"order_id": "12345"}', '{"order_id": "***2345"}'),
        ('{\\"orderId\\": \\"12345\\"}', '{\\"orderId\\": \\"***2345\\"}'),
        ("Bestellung 12345", "Bestellung ***2345"),
        ("Bestellnr. A-10023", "Bestellnr. ***0023"),
        ("Auftragsnummer 12345", "Auftragsnummer ***2345"),
        ("pedido nº 12345", "pedido nº ***2345"),
        ("commande n° 12345", "commande n° ***2345"),
        ("ordine 12345", "ordine ***2345"),
        ("заказ № 12345", "заказ № ***2345"),
        ("beställningsnummer 12345", "beställningsnummer ***2345"),
        ("注文番号12345", "注文番号***2345"),
        ("订单号\uff1a12345", "订单号\uff1a***2345"),
        ("order number 123 456 789", "order number ***6789"),
        ("order id 550e8400-e29b-41d4-a716-446655440000", "order id ***0000"),
        ("order **12345**", "order *****2345**"),
    ],
)
def test_an_order_number_keeps_its_last_four_digits(order, masked):
    assert text(f"Hi, {order}!") == f"Hi, {masked}!"


@pytest.mark.parametrize(
    "number",
    [
        "1Z999AA10123456784",
        "1z999aa10123456784",
        "1Z 999 AA1 01 2345 6784",
        "1Z5R89390357567127",
        "RB123456785GB",
        "RB 123 456 785 GB",
        "rb123456785gb",
        "9400111201080805483016",
        "9400 1112 0108 0805 4830 16",
        "92748931507708513018050063",
        "420221539101026837331000039521",
        "0307 1790 0005 2348 3741",
        "7196 9010 7560 0307 7385",
        "986578788855",
        "9865 7878 8855",
        "5682 8361 0012 734",
        "61299998820821171811",
        "9611020987654312345672",
        "9622001900000000000000776632517510",
        "00 0123 4500 0000 0027",
        "00340434161094015902",
        "JJD0099999999",
        "GM295117494011169042",
        "TBA123456789012",
        "JVGL0999999990",
        "LP00123456789012",
        "1LS123456789012",
    ],
)
@pytest.mark.parametrize("around", ["{}", "It is {}.", "({})", "a {}, b", '"{}"'])
def test_a_tracking_number_goes_whole(number, around):
    assert text(around.format(number)) == around.format("***")


@pytest.mark.parametrize(
    "number",
    ["RB123456786GB", "RB123456785", "1Z999AA1012345678", "996578788856345", "9400111201080805483017x"],
)
def test_a_wrong_check_digit_or_length_is_no_tracking_number(number):
    assert text(number) == number


@pytest.mark.parametrize(
    "label",
    [
        "tracking number:",
        "Tracking no.",
        "tracking #",
        "trackingNumber=",
        "tracking code is",
        "AWB",
        "waybill",
        "Sendungsnummer",
        "numéro de suivi :",
        "número de seguimiento:",
        "numer przesyłki",
        "kollinummer",
        "parcel no.",
        "Paketnummer:",
        "运单号",
        "追跡番号",
        "shipment id",
        "track & trace",
    ],
)
@pytest.mark.parametrize("number", ["AB-12345", "XK9922B", "123456", "1234 5678 9012", "ab12cd34"])
def test_a_word_for_tracking_is_enough(label, number):
    assert text(f"{label} {number}, thanks") in (
        f"{label} ***, thanks",
        f"{label.removesuffix('#')}***, thanks",
    )


@pytest.mark.parametrize(
    "carrier",
    ["DPD", "dpd:", "GLS", "DHL", "UPS #", "Hermes", "Royal Mail", "DPD parcel no.", "DHL-Paket", "DPD is"],
)
@pytest.mark.parametrize("number", ["15501234567890", "1550 1234 5678 90", "12345678901", "4821-5577-03"])
def test_the_name_of_a_carrier_is_enough(carrier, number):
    masked = text(f"{carrier} {number}, thanks")
    assert masked in (f"{carrier} ***, thanks", f"{carrier.removesuffix(' #')} ***, thanks")


def test_tracking_numbers_in_a_list_all_go():
    assert text("tracking numbers: AB12345, CD12346 and EF12347") == "tracking numbers: ***, *** and ***"


@pytest.mark.parametrize(
    "link",
    [
        "https://example.com",
        "http://example.com/a?b=c#d",
        "HTTPS://EXAMPLE.COM/X",
        "ftp://example.com/f",
        "www.example.com",
        "postgresql://ann:secret@db.example.com/shop",
        "bit.ly/3xYz",
        "ann.page/orders",
        "track.example.com/ABC?num=1Z999",
        "s3://bucket/key",
        "https://münchen.de/straße",
        "https://exa\u200bmple.com/x",
        "https://example.com/o'brien/+491712345678",
    ],
)
@pytest.mark.parametrize(
    "around", ["{}", "See {}.", "({})", "<{}>", '"{}",', "[it]({})", "{} {}", "看 {}。谢谢"]
)
def test_a_link_goes_whole(link, around):
    assert text(around.format(link, link)) == around.format("***", "***")


@pytest.mark.parametrize(
    "credential",
    [
        "sk_live_51HqLyjWDarjtT1zdp7dc",
        "rk_test_51HqLyjWDarj",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "sk-proj-51HqLyjWDarjtT1zdp7dc",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0123456789_abcdefgh",
        "glpat-xYz1234567890abcdefg",
        "xoxb-123456789012-abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyD-1234567890abcdefghijklmnopqrstu",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJiZWEifQ.c2lnbmF0dXJl",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxMjM0NSJ9.",
    ],
)
@pytest.mark.parametrize("around", ["{}", "key: {}", '"{}",', "the key ({}) is gone", "{} {}"])
def test_a_credential_goes_whole(credential, around):
    assert text(around.format(credential, credential)) == around.format("***", "***")


@pytest.mark.parametrize("start", ["sk_live_", "pk_test_", "whsec_", "ghp_", "xoxb-", "Bearer "])
def test_a_credential_that_happens_to_have_no_digit_goes_too(start):
    assert "Qwertyuiopasdfghjklz" not in text(f"it is {start}Qwertyuiopasdfghjklz, says he")


def test_what_follows_bearer_is_a_credential():
    assert (
        text("Authorization: Bearer 0f1f292b4e85b9b6a1c2== was refused")
        == "Authorization: Bearer *** was refused"
    )


@pytest.mark.parametrize(
    "kept", ["sk-learn", "sk_live_", "task_live_12345678", "eyJ", "AKIA 1", "Bearer of news"]
)
def test_what_only_begins_like_a_credential_is_left_alone(kept):
    assert text(kept) == kept


def test_what_a_link_or_an_address_holds_goes_with_it():
    assert text("https://example.com/orders/12345?mail=ann@example.com&tel=+491712345678") == "***"
    assert text("order12345.1712345678@example.com") == "***@***"


def test_a_text_that_was_made_to_be_read_over_and_over_goes_as_a_whole():
    """Each "#" is read once the one before it is masked: the work stays bounded, and nothing shows."""
    assert text("#12345" * 1000) == "***"


@pytest.mark.parametrize(
    "kept", ["***-***-1234", "***@***", "***1234", "***", "order ***1234, tel ***-***-1234 ***"]
)
def test_masks_are_left_alone(kept):
    assert text(kept) == kept


@pytest.mark.parametrize("words", ["tracking number XK-12345678", "DPD 15501234567890", "order no. 12345"])
def test_a_word_announces_no_number_after_the_one_that_it_announced(words):
    assert text(f"{words} \n1920x1080, 3840x2160").endswith("\n1920x1080, 3840x2160")


def test_what_looks_like_a_longer_mask_is_not_trusted():
    assert text("***-***-2025550123") == "***-***-***-***-0123"
    assert text("***2025550123") == "******-***-0123"


# --- Ordinary text ---------------------------------------------------------------------------------

ORDINARY = r"""
The meeting is on 2026-01-03 at 14:30.
The meeting is on 2026-01-03 14:30:05 in room 4.
Deployed at 2026-01-03T14:22:05Z without errors.
Deployed at 2026-01-03T14:22:05.123456+02:00 without errors.
Deployed at 2026-01-03T14:22:05.123Z, rolled back at 2026-01-03T14:25:00Z.
[2026-01-03 14:22:05,123] INFO worker started
Jan 03 14:22:05 worker[12345]: started
03/Jan/2026:14:22:05 +0000
The offer runs from 03.01.2026 to 31.01.2026.
The offer runs from 03.01.26 to 31.01.26.
Das Angebot gilt vom 03.01.26 - 31.01.26.
Termin: 03.01.26 14:30
Due 01/03/2026, paid 01/15/2026.
Due 1/3/2026 or 3/1/2026?
From 2019-2020 to 2024/2025.
The years 2019 2020 2021 were hard.
Between 1999 and 2026 a lot has changed.
The report covers 2024-2026 and 1985-1990.
Backup 20260103 finished.
Backup 20260103T142205Z finished.
Backup 20260103-142205 finished.
Backup 20260103142205 finished.
snapshot_20260103.tar.gz
ISO week 2026-W01-6.
Open Mon-Fri 9-17, Sat 10-14.
The train leaves at 08:15 and arrives at 11:52.
The lap took 1:02:33.456.
It costs 19.99 EUR.
It costs $1,234,567.89 in total.
It costs 1.234.567,89 EUR.
Det kostar 1 234 567 kr.
Det kostar 12 345 678,50 kr inklusive moms.
Le prix est de 12 345 678 €.
Der Umsatz lag bei 612.345.678 EUR.
The budget is EUR 612 345 678 this year.
The budget is €612,345,678 this year.
We raised $25000000 last year.
We raised 25000000 USD last year.
Das sind 83.200.000 Menschen.
The population is 10 500 000.
The population is 10,500,000.
There are 8 100 000 000 people.
There are 250000000 of them.
About 1000000 requests came in.
About 1234567 requests came in.
About 67108864 bytes were read.
Read 134217728 bytes in 1234 ms.
Read 33554432 B in 12345678 ns.
It took 12345678 us.
It took 98765432 ns to run.
It took 1234567.89 ms.
Processed 23456789 rows in 45 minutes.
Imported 45678901 records.
count=48213377 and size=23456789
offset: 48213377, length: 23456789
seq 48213377 acknowledged
Invoice 48213377 is paid.
invoice no. 48213377 is paid
Rechnung 48213377 ist bezahlt.
Factura 48213377 pagada.
Ticket 48213377 was closed.
Ticket #48213 was closed.
See issue #12345 and PR #23456.
Fixed in pull request #12345.
bug #98765 is a duplicate
We are #1!
Chapter #12 is next.
The colour is #ff8800, not #1e90ff.
The colour is #fff.
Use &#12345; in HTML.
#throwback #2026goals #covid2019
Version 1.2.3 is out.
Version 10.15.7 is out.
Windows 10.0.19045.4291 is installed.
v2026.01.03 released
semel 0.1.0, msgspec 0.19.0, Python 3.11.7
pip install react@18.2.0
uses: actions/checkout@v4
image: postgres:16.4-alpine@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
psycopg>=3.2,<4
Python 3.12.0rc1
550e8400-e29b-41d4-a716-446655440000
id=550e8400-e29b-41d4-a716-446655440000 done
12345678-1234-1234-1234-123456789012 is a UUID
01HZX5K7M3N8P4Q2R6S9T0V1W2
activity 01ARZ3NDEKTSV4RRFFQ69G5FAV saved
9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
commit 8ee3a9e3b2b2f1a
sha1 da39a3ee5e6b4b0d3255bfef95601890afd80709
md5 d41d8cd98f00b204e9800998ecf8427e
etag "33a64df551425fcc55e4d42a148795d9f25f89d4"
Trace 4bf92f3577b34da6a3ce929d0e0e4736 span 00f067aa0ba902b7
The address is 192.168.100.25.
The address is 192.168.100.25:8080.
Listening on 127.0.0.1:5432 and [::1]:5432
10.20.30.40 is private
172.16.254.1/24
MAC 00:1a:2b:3c:4d:5e
Born in 94103, moved to 10115.
San Francisco, CA 94103-1234
Cambridge, MA 02139-4307
10115 Berlin, 8001 Zürich, 111 22 Stockholm
SW1A 1AA London
75001 Paris, 28013 Madrid
ISBN 978-3-16-148410-0
The book 978-0-306-40615-7 is out of print.
SKU 48213377 is out of stock.
EAN 4006381333931
Article 48213377 fits.
Artikel 48213377 passt.
part 48213377-2
Build 48213377 passed.
Job 48213377 failed after 3 attempts.
pid 12345 tid 48213377
epoch 1735689600
expires at 1735689600
expires at 1735689600.123456
"expiresAt": 1735689600
ts=1735689600123
1735689600 1735689700 1735689800
from 1735689600 to 1767225600
Latitude 59.3293235, longitude 18.0685808.
59.3293235 18.0685808
52.520008, 13.404954
-33.8688197 151.2092955
Pi is 3.14159265358979.
e is 2.718281828459045.
The ratio is 0.123456789.
6.02214076e23 and 1.602176634e-19
loss=0.00012345 acc=0.98765432
Temperature 21.5 °C, humidity 45 %.
We ordered 3 pizzas and 12 drinks.
Please order 2 more.
In order to win, play 90 minutes.
The order of 3 items is fine.
order by created_at desc limit 100
The order was placed in 2026.
Sort order: 3
Law and order.
Border 2000 km long.
The SO14 3AB area, SO4 and PO4 ions, PO Box 4711.
ISO27001 and ISO20022123 are standards.
so 48215577 people came
so4821 is short
SO2 rose by 48 %
DPD delivers 10 500 000 parcels.
DPD 10 500 000 parcels
DHL 250000000 parcels in 2026
DHL 2026-01-03 14:30
DHL 20260103
UPS 1500 VA, UPS 3000
FedEx 12 of 345
groups 12345678 rows
DPD was late by 15 minutes.
Recorder 500
Orders went up by 12 % in 2026.
Your order ships on 2026-01-03.
Order date 2026-01-03
Order total: 49.90 EUR
The order came to 12345.67 EUR.
Meine Bestellung vom 03.01.2026
Mi pedido llegó en 3 días.
Ma commande du 03/01/2026 est arrivée.
Il mio ordine di 3 libri.
We keep track of 500 things.
Tracking is enabled since 2026.
Tracking started on 2026-01-03.
The parcel weighs 12.5 kg.
The package has 3 versions.
The shipment left on 03.01.2026.
Das Paket kam am 03.01.2026 an.
call the function with 3 arguments
The call took 1234 ms.
Text me later.
The phone rang 3 times.
Ring 2 was broken.
Her mobile is broken.
Reach 100 percent.
contact us by post
Email me!
Mail is at 9.
user@localhost is fine
root@localhost:~# ls
git@github
@ann and @bob were there
a @ b
5 @ 3.50 EUR
Meet me at example.com
Meet me at noon.It was late.
Look at example.com for more.
v2.4 at github.com
Version 2.4 at github.com
The team at github.com is great.
More info at example.com.
The docs are available at docs.example.com.
Reach us at example.com or visit us @ example.com
Reach me @ example.com
It is hosted at example.com.
I bought it at example.com.
listening at example.com:8080
Error at setup.py
failed at app.js
Error in thread main at java.io.File.read
Mail is at 9.30am
thanks @bob.smith
cc @ann.b and @bob.c
Sign up at example.org today
She works at example.com.
Ann was at home.
Meet Ann at noon.
3 @ amazon.com
Channel 5 at example.tv
The price at example.de is lower.
My account at example.com is locked.
3 apples at 2.50 EUR each
Meet @ 10:30
C++ and C#
and/or, he/she, 24/7, 1/2, 3/4
Node.js/TypeScript
src/semel/redact/text.py
tests/unit/test_redact.py::test_x
/usr/local/bin/python3.11
C:\Program Files\Python311
README.md and setup.py
e.g. this, i.e. that, z.B. jenes
key: value
SELECT count(*) FROM t WHERE id = 12345
UPDATE t SET n = n + 1 WHERE id IN (12345, 23456, 34567)
HTTP/1.1 200 OK
GET /health 200 12 ms
status 404, retry 3 of 5
error 0x80070005 at 0x7ffee3b2
0xdeadbeef 0b101010
RFC 8785, RFC 9110, ISO 8601
IPv6 2001:db8::1
SMTP 25, HTTP 80, HTTPS 443, PostgreSQL 5432
chr(27) + "[31m"
1 2 3
1, 2, 3, 4, 5, 6, 7, 8, 9, 10
1+1=2, 2*3=6, 10-4=6
(1) first, (2) second, (3) third
1. first
a) 10 b) 20 c) 30
Seite 12 von 345
Zimmer 4711
Haus Nr. 12
§ 12 Abs. 3 Nr. 4
Artikel 6 Absatz 1
50 % Rabatt auf alles
10x faster, 2.5x cheaper
1920x1080, 3840x2160
5' 11" tall
180 cm, 75 kg
3-4 weeks, 10-15 minutes
Score 3:2 after 90 minutes
Flight LH 400, gate B22
BMW 320d, iPhone 15, Boeing 747-8
A4, B5, C6
COVID-19, H5N1, B-52
MP3, MP4, H.264, UTF-8, Latin-1
Channel 5 at 20:15
Kl. 20.15 på SVT 1
La réunion est le 3 janvier 2026 à 14h30.
La reunión es el 3 de enero de 2026 a las 14:30.
La riunione è il 3 gennaio 2026 alle 14:30.
Spotkanie jest 3 stycznia 2026 o 14:30.
Встреча 3 января 2026 года в 14:30.
会议在2026年1月3日14:30。
会議は2026年1月3日14時30分です。
회의는 2026년 1월 3일 14시 30분입니다.
الاجتماع في 3 يناير 2026 الساعة 14:30
פגישה ב-3 בינואר 2026 בשעה 14:30
Größe 42, Länge 1,75 m, Gewicht 70 kg
Öl kostet 1,79 €/l
½ Liter, ¾ Tasse, 2³ = 8, H₂O
“Quoted” – with dashes — and … ellipses
👍🏽 👨‍👩‍👧 1️⃣ 2️⃣
Привет, как дела?
Hello, world!
Nothing to see here.
arn:aws:sqs:eu-north-1:123456789012:queue.fifo
arn:aws:dynamodb:us-east-1:491712345678:table/semel
charge:o%3A1
100%25 sure
progress 45%20 of
*** and ** and *
***@*** wrote from ***-***-1234 about ***5678
{"a": 1, "b": [2, 3], "c": null}
rgb(255, 128, 0)
margin: 10px 20px 30px 40px
attempt 2 of 5, lease 30 s, ttl 86400
lease=30 ttl=2592000
max 9007199254740991
limit 400 KB, 16 MiB, 1024 bytes
id 9007199254740993 too large
The snowflake 1745678901234567890 was stored.
""".strip().split("\n")  # noqa: RUF001


def test_the_corpus_of_ordinary_text_is_large():
    assert len(set(ORDINARY)) >= 200


@pytest.mark.seed("R7")
def test_ordinary_text_is_left_exactly_alone():
    changed = {line: text(line) for line in ORDINARY if text(line) != line}
    assert not changed


def test_characters_that_cannot_be_seen_are_kept_in_ordinary_text():
    assert text("soft\u00adhyphen and zero\u200bwidth") == "soft\u00adhyphen and zero\u200bwidth"


@given(
    st.datetimes(datetime.fromisoformat("1970-01-02"), datetime.fromisoformat("2049-12-31")),
    st.sampled_from(["{}", "at {}.", "({})", "since {} on"]),
)
def test_times_are_left_alone(moment, around):
    for written in (
        moment.isoformat(),
        moment.isoformat(" "),
        f"{moment:%Y-%m-%d}",
        f"{moment:%d.%m.%Y}",
        f"{moment:%m/%d/%Y}",
    ):
        assert text(around.format(written)) == around.format(written)


@given(st.uuids(), st.binary(min_size=20, max_size=32), st.decimals(0, 10**7, places=2))
def test_uuids_digests_and_amounts_are_left_alone(uuid, data, amount):
    for ordinary in (str(uuid), f"id={uuid}.", f"{amount:,} EUR", f"${amount:,}", f"{amount} EUR"):
        assert text(ordinary) == ordinary
    code = sha256(data).hexdigest()
    assert text(f"commit {code}") == f"commit {code}"


# --- Planted values --------------------------------------------------------------------------------

plain_texts = st.sampled_from([line for line in ORDINARY if not line.startswith("arn:")])
around = st.tuples(
    st.sampled_from(["", "(", "<", "[", '"', "'", "-", "*", ":", "“", "¿"]),
    st.sampled_from(["", ")", ">", "]", '"', ".", ",", "!", "?", ";", "”", "…"]),
)


def without(output: str, *ordinary: str) -> str:
    # What is left of the ordinary text may hold the same five digits by chance.
    for one in ordinary:
        output = output.replace(one, "", 1)
    return output


def test_a_number_that_shares_digits_with_the_one_before_goes_with_it():
    """With the two digits after it, the first is a valid number too, and the rest of the second is none."""
    assert REDACTOR.text("+43664145416. (02-235-8063)") == "***-***-8063)"


@pytest.mark.seed("R7")
@pytest.mark.parametrize("kind", list(planted.KINDS))
@given(st.randoms(use_true_random=False), plain_texts, plain_texts, around)
def test_nothing_planted_gets_through(kind, rng, before, after, marks):
    value = planted.KINDS[kind](rng)
    # A full stop, because "invoice" or "EUR" right before a number says what it is.
    masked = text(f"{before}. {marks[0]}{value}{marks[1]} \n{after}")
    assert not planted.leaked(without(masked, before, after), value)
    assert "***" in masked
    assert masked.endswith(after)
    assert text(masked) == masked


@given(
    st.lists(st.sampled_from(list(planted.KINDS)), min_size=2, max_size=4), st.randoms(use_true_random=False)
)
def test_nothing_gets_through_beside_another(kinds, rng):
    values = [planted.KINDS[kind](rng) for kind in kinds]
    masked = text(" and then ".join(values))
    for value in values:
        assert not planted.leaked(masked, value)


@pytest.mark.parametrize("region", REGIONS)
def test_the_phone_numbers_of_every_region_are_known(region):
    """In every form that phonenumbers writes, and bare, with this region alone and with all of them."""
    alone = Redactor((region,))
    for line in (Line.FIXED_LINE, Line.MOBILE):
        example = phonenumbers.example_number_for_type(region, line)
        assert example is not None
        for form in planted.phone_forms(example, Random(0)):
            for redactor in (alone, REDACTOR):
                masked = redactor.text(f"Hi, {form}, bye")
                assert not planted.leaked(masked, form)
                assert masked.endswith(f"***-***-{str(example.national_number)[-4:]}, bye")


@pytest.mark.parametrize("region", sorted(phonenumbers.SUPPORTED_REGIONS - set(REGIONS)))
def test_with_a_plus_the_phone_numbers_of_all_other_countries_are_known_too(region):
    example = phonenumbers.example_number(region)
    assert example is not None
    for form in (Format.INTERNATIONAL, Format.E164, Format.RFC3966):
        written = phonenumbers.format_number(example, form)
        assert not planted.leaked(text(f"Hi, {written}, bye"), written)


def test_more_regions_know_more_and_fewer_know_less():
    latvian, icelandic = "21 234 567", "4101234"
    assert text(latvian) == latvian
    assert Redactor(("LV",)).text(latvian) == "***-***-4567"
    assert text(icelandic) == icelandic
    assert Redactor(("IS",)).text(icelandic) == "***-***-1234"
    assert Redactor(("US",)).text("0171 234567, 06 12 34 56 78") == "***-***-4567, 06 12 34 56 78"
    assert Redactor(()).text("2025550123 or +12025550123") == "2025550123 or ***-***-0123"


tokens = st.sampled_from(
    [
        "order",
        "Order no. ",
        "#",
        "12345",
        "0171",
        "2345678",
        "+49",
        " ",
        "  ",
        "-",
        "/",
        "(",
        ")",
        "@",
        "ann",
        "example.com",
        ".",
        "https://",
        "www.",
        "tracking ",
        "1Z999AA10123456784",
        "RB123456785GB",
        "***",
        "***-***-1234",
        "***1234",
        "***@***",
        "\u200b",
        "%40",
        "%2B",
        "tel:",
        "\n",
        ",",
        "2026-01-03",
        "14:22",
        "x",
        "ext. 55",
        "€",
        "kr",
        "id ",
        "1",
        "22",
        "333",
        "4444",
        "ORD-",
        "=",
        "&",
        '"',
        "'",
        "\uff1a",
        "①",
        "é",
        "邮箱",
        " at ",
        " dot ",
        "(at)",
        "com",
        "DPD ",
        "SO",
        "\0",
        "%",
        "\ud800",
    ]
)


@given(st.lists(tokens, max_size=12).map("".join) | st.text(max_size=40))
def test_redacting_twice_gives_what_redacting_once_gives(value):
    masked = text(value)
    assert text(masked) == masked


RULES = (credentials, links, emails, tracking_numbers, order_numbers)
announced = st.sampled_from(
    [
        *("po-", "SO_", "1z", "ord", "track ", "colis ", "www.", ".co/", "://", "a@b.co", "7", "88", "ab1"),
        *(
            " at ",
            "[at]",
            "b.co",
            " dot ",
            "so4821",
            "5577",
            "dpd ",
            "x-",
            " ",
            "ghp_",
            "eyJ",
            "AKIA",
            "bearer ",
            "sk-",
            "XX",
            "abcdefghijklmnop",
        ),
    ]
)


@given(st.lists(tokens | announced, max_size=12).map("".join) | st.text(max_size=40))
def test_the_first_look_passes_over_nothing_that_a_rule_would_find(value):
    plain = MarkedText(value).plain
    if is_harmless(plain):
        found = [mark for rule in RULES for mark in rule(plain)]
        assert found + scanning.numbers(plain, numbering_plans(REGIONS), WorkLimit()) == []


@given(st.text("abc ,.é漢", max_size=60))
def test_a_text_without_digits_links_and_addresses_is_returned_as_it_is(value):
    assert text(value) is value


# --- Nested data -----------------------------------------------------------------------------------


def test_texts_are_masked_at_every_depth_and_the_input_is_not_changed():
    body = {
        "a": ["ann@example.com", ("order 12345", {"x": "see https://example.com"})],
        "b": {"tel:+12025550123"},
    }
    before = copy.deepcopy(body)
    assert REDACTOR.json(body) == {
        "a": ["***@***", ("order ***2345", {"x": "see ***"})],
        "b": {"tel:***-***-0123"},
    }
    assert body == before


def test_names_are_masked_too_and_none_of_their_values_is_lost():
    masked = REDACTOR.json({"ann@example.com": 1, "bob@example.com": 2, "cid@example.com": 3, "plain": 4})
    assert masked == {"***@***": 1, "***@*** (2)": 2, "***@*** (3)": 3, "plain": 4}


@pytest.mark.seed("R7")
@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("phone", 2025550123, "***-***-0123"),
        ("phone_number", "5550123", "***-***-0123"),
        ("tel", "112", "***"),
        ("customerPhone", "unknown", "unknown"),
        ("msisdn", 2025550123.0, "***-***-0123"),
        ("wa_id", "491712345678", "***-***-5678"),
        ("mobile", True, True),
        ("phone", None, None),
        ("phones", [2025550123, "5550124"], ["***-***-0123", "***-***-0124"]),
        ("order_id", 12345, "***2345"),
        ("orderNumber", "A-10023", "***0023"),
        ("order_no", "77", "***"),
        ("po_number", 998877, "***8877"),
        ("order", 12345, "***2345"),
        ("order", 3, 3),
        ("order", "asc", "asc"),
        ("order_count", 12345, 12345),
        ("order", {"id": 5}, {"id": 5}),
        ("tracking_number", "AB12", "***"),
        ("tracking", 123456789012, "***"),
        ("tracking_enabled", 1, 1),
        ("awb", Decimal(12345), "***"),
        ("email", "ann at example", "***@***"),
        ("Email-Address", 7, "***@***"),
        ("email_count", 7, 7),
        ("emails", ("x",), ("***@***",)),
        ("n", 2025550123, 2025550123),
        ("price", 12.5, 12.5),
        ("id", 48213377, 48213377),
        ("ratio", float("inf"), float("inf")),
        ("phone", float("inf"), float("inf")),
        ("order_id", "***2345", "***2345"),
    ],
)
def test_a_name_says_what_its_value_is(name, value, masked):
    assert REDACTOR.json({name: value}) == {name: masked}


def test_a_number_that_python_does_not_write_is_masked_too():
    assert REDACTOR.json({"phone": 10**5000 + 2025550123}) == {"phone": "***-***-0123"}


class Colour(StrEnum):
    RED = "red"


def test_what_json_does_not_know_is_kept_if_it_tells_nothing_and_named_if_it_may():
    uuid, day, moment = UUID(int=7), date(2026, 1, 3), datetime(2026, 1, 3, tzinfo=UTC)
    assert REDACTOR.json([uuid, day, moment, Colour.RED, None, True]) == [
        uuid,
        day,
        moment,
        Colour.RED,
        None,
        True,
    ]
    assert REDACTOR.json([b"ann@example.com", bytearray(3), memoryview(b"1234")]) == [
        "<15 bytes>",
        "<3 bytes>",
        "<4 bytes>",
    ]
    assert REDACTOR.json([object(), ValueError("ann@example.com")]) == ["<object>", "<ValueError>"]
    assert REDACTOR.json({b"ann": 1, ("ann",): 2, 7: 3}) == {"<bytes>": 1, "<tuple>": 2, 7: 3}
    assert REDACTOR.json(frozenset({"ann@example.com"})) == frozenset({"***@***"})


def test_data_nested_too_deeply_is_refused_and_not_a_recursion_error():
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(UsageError, match="more than 100 levels"):
        REDACTOR.json(deep)
    loop: dict = {}
    loop["self"] = loop
    with pytest.raises(UsageError, match="contains itself"):
        REDACTOR.json(loop)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.lists(tokens, max_size=5).map("".join),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "phone", "order_id", "email"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_redacting_nested_data_twice_changes_nothing_more(value):
    masked = REDACTOR.json(value)
    assert REDACTOR.json(masked) == masked


# --- Excerpts --------------------------------------------------------------------------------------


@pytest.mark.seed("R7")
def test_an_excerpt_is_masked_first_then_cut_at_eighty_characters():
    message = (
        "Hello, this is Ann. My order #12345 did not arrive; call +12025550123 or write to ann@example.com."
    )
    excerpt = REDACTOR.excerpt(message)
    assert excerpt == "Hello, this is Ann. My order ***2345 did not arrive; call ***-***-0123 or write…"
    assert len(excerpt) == 80


def test_a_mask_is_never_cut_in_two():
    for length in range(1, 30):
        excerpt = REDACTOR.excerpt("call 2025550123 or write to ann@example.com", length)
        assert len(excerpt) <= length
        assert REDACTOR.excerpt("call 2025550123", length) in (
            "call ***-***-0123",
            "call…",
            "cal…",
            "ca…",
            "c…",
            "…",
        )


def test_a_short_text_has_no_ellipsis_and_its_blanks_are_joined():
    assert REDACTOR.excerpt("  a\n\tb   c ") == "a b c"
    assert REDACTOR.excerpt("x" * 80) == "x" * 80
    assert REDACTOR.excerpt("x" * 81) == "x" * 79 + "…"


def test_a_number_broken_over_two_lines_does_not_come_together_in_the_excerpt():
    assert REDACTOR.excerpt("0171\n2345678") == "***-***-5678"


def test_an_excerpt_of_no_characters_is_refused():
    with pytest.raises(InvalidOption, match="at least one"):
        REDACTOR.excerpt("x", 0)


@given(st.lists(tokens, max_size=20).map("".join), st.integers(1, 40))
def test_an_excerpt_is_never_too_long(value, length):
    assert len(REDACTOR.excerpt(value, length)) <= length


def test_an_excerpt_is_made_of_the_beginning_of_a_long_text():
    assert REDACTOR.excerpt("Hello there, " * 100_000, 20) == "Hello there, Hello…"
    assert len(REDACTOR.excerpt(f"https://{'x' * 5000} " + "and so on " * 1000)) <= 80


# --- Hostile text ----------------------------------------------------------------------------------


class Work:
    """What was done to redact: characters that were read, and questions that were asked of the rules."""

    def __init__(self, monkeypatch):
        self.characters = self.questions = self.parsed = 0
        for owner, name, count in (
            (redacting, "MarkedText", self._read),
            (scanning, "other_number_end", self._asked),
            (NumberingPlans, "knows", self._asked),
            (NumberingPlans, "is_international", self._parsed),
        ):
            monkeypatch.setattr(owner, name, self._counting(getattr(owner, name), count))

    def _counting(self, function, count):
        def counted(*args, **kwargs):
            count(*args)
            return function(*args, **kwargs)

        return counted

    def _read(self, text):
        self.characters += len(text)

    def _asked(self, *_):
        self.questions += 1

    def _parsed(self, *_):
        self.parsed += 1


@pytest.fixture
def work(monkeypatch):
    return Work(monkeypatch)


PIECES = (
    *("+1", "+1 ", "+(1", "1", "1 ", "1-", "1.", "1(", "12 34 ", "123 ", "1234567890", "12345-", "1 000 "),
    *("978-1-", "1.1.1.", "070-123 45 67, ", "0701234567, ", "+46701234567 ", "1234567 x", "2025550123x1"),
    *("%2B1", "1\u200b", "\uff11", "@", "a@", "a@a.a@a.", "a@b.co ", "email=a@b.co&", "mailto:a@b.co?"),
    *("a", "a.", ".", "-", "(", "+(", '"', '\\"', "%20", "http://", "www.", "a.com/ ", "#12345", "#1234 "),
    *("order 12345 ", "order no ", "tracking number ", "1Z 9 ", "1Z999AA10123456784 ", "RB 1 2 3 4 "),
    *("phone 1", "2026-01-01 ", "1700000000 ", "100 000 ", "***1234", "***@", "ORD-1-", "2026 ", "20 "),
    *(
        "a at ",
        " at ",
        "a @ ",
        "a at b.",
        "a at b dot ",
        "at a.com ",
        "a at b.com ",
        "(at)",
        "a(at)b(dot)",
        "a' ",
    ),
    *("SO123456", "so", "DPD 1", "DPD 12345678 ", "dpd ", "dpd no ", "ups1", "1550123456"),
)


@pytest.mark.situation(52)
@pytest.mark.parametrize("piece", PIECES)
def test_the_work_is_bounded_whatever_a_text_holds_and_however_long_it_is(work, piece):
    """Counted and not timed: in characters that are read, and in questions about what a number is."""
    for length in (20_000, 2_000_000):
        work.characters = work.questions = work.parsed = 0
        masked = text(piece * (length // len(piece)))
        # Two readings where there is percent-encoding, in each of four rounds.
        assert work.characters <= 8 * min(length, scanning.MOST_CHARACTERS)
        assert work.questions + work.parsed <= 2 * scanning.MOST_QUESTIONS
        assert work.parsed <= scanning.MOST_QUESTIONS / 2
        assert len(masked) <= scanning.MOST_CHARACTERS
        assert text(masked) == masked


@pytest.mark.situation(52)
@pytest.mark.parametrize("piece", ["+1+1+1+1+1+1+1", "070-123 45 67", "x@y.example, 2025550123"])
def test_the_work_is_bounded_for_all_texts_of_nested_data_together(work, piece):
    data = [{"said": piece, f"{piece} {number}": [piece]} for number in range(3000)]
    masked = REDACTOR.json(data)
    assert work.characters <= 8 * scanning.MOST_CHARACTERS
    assert work.questions + work.parsed <= 2 * scanning.MOST_QUESTIONS
    assert not planted.leaked(repr(masked), piece)
    assert masked[-1]["***"] == "***"
    # And it is there again for the next.
    assert REDACTOR.json("call 2025550123") == "call ***-***-0123"


@pytest.mark.situation(52)
def test_digits_without_end_are_masked_without_asking_what_they_are(work):
    for many in ("1" * 5000, "12 " * 2000, "+1" * 2000):
        assert text(f"see {many}").rstrip() in ("see ***", "see +***")
        assert work.questions + work.parsed == 0


@pytest.mark.situation(52)
def test_a_list_of_numbers_is_masked_to_its_end_though_nobody_looks_at_all_of_it():
    rng = Random(7)
    numbers = [
        f"+46 70 {planted.digits(rng, 3)} {planted.digits(rng, 2)} {planted.digits(rng, 2)}"
        for _ in range(2000)
    ]
    masked = text(", ".join(numbers))
    assert masked.startswith(f"***-***-{numbers[0][-5:-3]}{numbers[0][-2:]}, ***-***-")
    assert not [number for number in numbers if number[-9:] in masked]
    assert not re.search(r"\d{5}|\d[ -]\d", masked)


@pytest.mark.situation(52)
@pytest.mark.seed("R7")
@pytest.mark.parametrize("kind", list(planted.KINDS))
def test_nothing_is_cut_in_half_and_shown(kind):
    """Wherever a text is cut: the piece of a number that is left would not be known for one."""
    rng = Random(11)
    for _ in range(amount(200, 15)):
        value = planted.KINDS[kind](rng)
        whole = f"Hello, please write to me as soon as possible: {value} is what I have. Many thanks!"
        for most in range(1, len(whole) + 1):
            cut = beginning(whole, most)
            assert len(cut) <= max(most, 3)
            assert not planted.leaked(text(cut), value), (most, cut)


@pytest.mark.situation(52)
def test_a_text_without_a_place_to_cut_goes_as_a_whole():
    assert beginning("x" * 100, 50) == "***"
    assert beginning("1 2 3 4 " * 20, 50) == "***"
    assert beginning("two plain words", 12) == "two ***"
    assert beginning('and "ann and berta"@example.com', 22) == "***"
    assert beginning("short", 5) == "short"


# --- Logging ---------------------------------------------------------------------------------------


@pytest.fixture
def log():
    """A logger whose handler masks, and the records that it wrote."""
    written: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record):
            written.append(self.format(record))

    handler = Keeping()
    handler.setFormatter(logging.Formatter("%(message)s %(customer)s", defaults={"customer": "-"}))
    handler.addFilter(REDACTOR.filter())
    logger = logging.getLogger("tests.redact")
    logger.propagate = False
    logger.addHandler(handler)
    yield logger, written
    logger.removeHandler(handler)
    handler.close()


@pytest.mark.seed("R7")
def test_a_message_is_masked_with_its_arguments(log):
    logger, written = log
    logger.warning("%s ordered #%d", "ann@example.com", 1234567)
    logger.warning("%(mail)s", {"mail": "ann@example.com"})
    assert written == ["***@*** ordered ***4567 -", "***@*** -"]


def test_arguments_that_do_not_fit_are_masked_all_the_same(log):
    logger, written = log
    logger.warning("no place for it", "ann@example.com")  # noqa: PLE1205 - that is the point
    logger.warning("%d", "ann@example.com")
    assert written == ["no place for it ('***@***',) -", "%d ('***@***',) -"]


def test_an_exception_and_the_stack_are_masked(log):
    logger, written = log
    try:
        raise LookupError("ann@example.com")
    except LookupError:
        logger.exception("failed", stack_info=True)
    assert "LookupError: ***@***" in written[0]
    assert "Stack (most recent call last)" in written[0]
    assert "ann@example.com" not in written[0]


def test_extra_attributes_are_masked_by_their_names_too(log):
    logger, written = log
    logger.warning("x", extra={"customer": ["ann@example.com", {"phone": 2025550123}], "phone": 2025550123})
    assert written == ["x ['***@***', {'phone': '***-***-0123'}]"]


def test_a_record_is_masked_for_whoever_comes_later():
    record = logging.makeLogRecord({"msg": "ann@example.com", "phone": 2025550123, "exc_info": None})
    assert REDACTOR.filter().filter(record)
    assert (record.getMessage(), record.__dict__["phone"]) == ("***@***", "***-***-0123")


class Unprintable:
    def __repr__(self):
        raise RuntimeError("ann@example.com")


def test_what_cannot_be_masked_is_left_out_and_nothing_is_raised(log):
    logger, written = log
    logger.warning(Unprintable())
    loop: list = []
    loop.append(loop)
    logger.warning("order 12345", extra={"customer": loop})
    assert written == [
        "<left out: it could not be redacted> -",
        "order ***2345 <left out: it could not be redacted>",
    ]


# --- Digests and pseudonyms ------------------------------------------------------------------------


@pytest.mark.seed("R7")
@pytest.mark.parametrize("secret", [None, b"secret"])
def test_a_digest_is_the_fingerprint_and_the_size_of_the_canonical_form(secret):
    payload = {"b": [1, 2.5], "a": "é"}
    assert digest(payload, secret) == Digest(fingerprint(payload, secret), len(canonical(payload)))


def test_bytes_and_text_are_digested_as_they_are():
    assert (
        digest(b"ann") == digest("ann") == digest(bytearray(b"ann")) == Digest(sha256(b"ann").hexdigest(), 3)
    )
    assert digest("é").bytes == 2
    assert digest("ann", b"secret").sha256 == hmac_digest(b"secret", b"ann", "sha256").hex()


def test_a_payload_without_a_canonical_form_has_no_digest():
    with pytest.raises(InvalidPayload):
        digest({"x": float("nan")})
    with pytest.raises(InvalidPayload, match="surrogate"):
        digest("\ud800")


def test_a_pseudonym_is_the_same_for_the_same_person_and_secret_only():
    name = pseudonym("ann@example.com", b"secret")
    assert name == hmac_digest(b"secret", b"ann@example.com", "sha256").hex()[:32]
    assert name == pseudonym("ann@example.com", b"secret")
    assert name != pseudonym("ann@example.com", b"another")
    assert name != pseudonym("bob@example.com", b"secret")
    assert text(name) == name


def test_a_pseudonym_without_a_secret_is_refused():
    with pytest.raises(InvalidOption, match="needs a secret"):
        pseudonym("ann@example.com", b"")


# --- The extra -------------------------------------------------------------------------------------


def test_an_unknown_region_is_refused():
    with pytest.raises(InvalidOption, match="'XX'"):
        Redactor(("DE", "XX"))


def test_without_phonenumbers_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    with pytest.raises(MissingExtra, match=r'pip install "semel\[privacy\]"'):
        Redactor()


# --- Imports ---------------------------------------------------------------------------------------


def loaded_by(statement: str, *modules: str) -> list[str]:
    code = f"import sys; {statement}; print(*[name for name in {modules!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_redactor_loads_neither_phonenumbers_nor_logging_before_they_are_needed():
    assert loaded_by("from semel.redact import Redactor", "phonenumbers", "logging") == []
    assert loaded_by("from semel.redact import Redactor; Redactor().filter()", "logging") == ["logging"]


def test_a_digest_does_not_wait_for_the_rules():
    statement = "from semel.redact import digest; digest('x')"
    assert loaded_by(statement, "semel.redact", "semel.redact.text") == ["semel.redact"]


@pytest.mark.parametrize("name", redact.__all__)
def test_every_public_name_is_there(name):
    assert getattr(redact, name) is not None


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'semel\.redact' has no attribute 'Redacter'"):
        redact.Redacter  # type: ignore[attr-defined]  # noqa: B018 - reading it is the point
