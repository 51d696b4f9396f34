"""Makes calls with a real client, as an application would: public options only, nothing patched.

    driver.py CLIENT

Every line of standard input is a call: {"order", "url", "timeout", "key"?}. Calls run side by side, each with a client
of its own. Every call is answered by a line: {"order", "id"} where the client returned, {"order", "error"} where it raised.
"""

import json
import sys
import threading


def stripe_client():
    import stripe

    def create(call):
        client = stripe.StripeClient(
            "sk_test_semel",
            base_addresses={"api": call["url"]},
            max_network_retries=5,
            http_client=stripe.RequestsClient(timeout=call["timeout"]),
        )
        params = {"amount": 1200, "currency": "eur", "metadata": {"order": call["order"]}}
        options = {"idempotency_key": call["key"]} if call["key"] else {}
        return client.v1.payment_intents.create(params=params, options=options).id

    return create


def svix_client():
    from svix.api import ApplicationCreateOptions, ApplicationIn, Svix, SvixOptions

    def create(call):
        options = SvixOptions(
            server_url=call["url"], timeout=call["timeout"], retry_schedule=[0.1, 0.2, 0.4, 0.8, 1.6]
        )
        client = Svix("testsk_semel", options)
        options = ApplicationCreateOptions(idempotency_key=call["key"])
        return client.application.create(ApplicationIn(name=call["order"]), options).id

    return create


def increase_client():
    from increase import Increase

    def create(call):
        client = Increase(
            api_key="semel", base_url=call["url"], timeout=call["timeout"], max_retries=5
        )
        transfer = client.account_transfers.create(
            account_id="account_a",
            destination_account_id="account_b",
            amount=1200,
            description=call["order"],
            idempotency_key=call["key"],
        )
        return transfer.id

    return create


def gocardless_pro_client():
    import gocardless_pro

    def create(call):
        client = gocardless_pro.Client(
            access_token="semel", base_url=call["url"], timeout=call["timeout"]
        )
        params = {
            "amount": 1200,
            "currency": "GBP",
            "links": {"mandate": "MD1"},
            "metadata": {"order": call["order"]},
        }
        headers = {"Idempotency-Key": call["key"]} if call["key"] else None
        return client.payments.create(params=params, headers=headers).id

    return create


CLIENTS = {
    "stripe": stripe_client,
    "svix": svix_client,
    "increase": increase_client,
    "gocardless_pro": gocardless_pro_client,
}


def main():
    create = CLIENTS[sys.argv[1]]()
    telling = threading.Lock()

    def run(call):
        try:
            answer = {"order": call["order"], "id": create(call)}
        except Exception as error:
            # Some of these say the code only in an attribute.
            answer = {"order": call["order"], "error": f"{type(error).__name__}: {error} {vars(error)}"}
        with telling:
            print(json.dumps(answer), flush=True)

    for line in sys.stdin:
        threading.Thread(target=run, args=[json.loads(line)], daemon=True).start()


main()
