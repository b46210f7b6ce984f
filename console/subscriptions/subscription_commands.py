"""``pgsluice subscriptions``: its flags and its help."""

from __future__ import annotations

import click

from pgsluice.console.flags import load_settings, takes
from pgsluice.shared.config.settings import GroupSettings, SubscriptionGroupSettings
from pgsluice.shared.process.user import user_name
from pgsluice.shared.subscriptions.subscription_settings import EVENTS

_identifier = click.argument("identifier", metavar="ID")


@click.group()
@takes(SubscriptionGroupSettings, shown=("config", "group", "nats-url"))
def subscriptions() -> None:
    """Manage the webhook subscriptions that 'pgsluice worker subscriptions' serves.

    Other users subscribe with the REST API of 'pgsluice server'.
    """


@subscriptions.command("subscribe", short_help="Subscribe a URL; its receiver must confirm.")
@takes(SubscriptionGroupSettings)
@click.argument("url")
@click.option("--schema", default="", metavar="NAME", help="Only changes of this schema (default: any)")
@click.option("--table", default="", metavar="NAME", help="Only changes of tables with this name (default: any)")
@click.option(
    "--event", "events", multiple=True, type=click.Choice(EVENTS), help="Only this kind of change; repeatable (default: all)"
)
@click.option("--rules", "rules_file", type=click.Path(exists=True, dir_okay=False), help="Rules file for the posted changes")
@click.option("--owner", default="", metavar="NAME", help="Owner of the subscription (default: this machine's user)")
@click.option("--worker", default="subscriptions", metavar="NAME", show_default=True, help="Worker that serves the subscription")
@click.pass_context
def subscribe(
    context: click.Context,
    url: str,
    schema: str,
    table: str,
    events: tuple[str, ...],
    rules_file: str | None,
    owner: str,
    worker: str,
) -> None:
    """Subscribe URL to a group's changes from now on. Prints the subscription's id.

    The receiver first gets a challenge, which it must send back. Commands show only the host of URL.
    """
    settings = load_settings(context, SubscriptionGroupSettings)
    from pgsluice.console.subscriptions.subscribing import SubscriptionWish
    from pgsluice.console.subscriptions.subscription_list import begin
    from pgsluice.shared.config.yaml_nodes import read_text

    rules = read_text(rules_file, "rules file") if rules_file else ""
    begin(settings, SubscriptionWish(url, schema, table, events or EVENTS, worker, rules), owner or user_name())


@subscriptions.command("unsubscribe", short_help="End a subscription.")
@takes(GroupSettings)
@_identifier
@click.pass_context
def unsubscribe(context: click.Context, identifier: str) -> None:
    """End the subscription ID. Pending changes are never posted to its receiver."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import end

    end(settings, identifier)


@subscriptions.command("list", short_help="List subscriptions: owner, filter, progress.")
@takes(GroupSettings)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object for each subscription instead of a table")
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List the group's subscriptions: owner, filter, progress and problems of each receiver."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import show

    show(settings, as_json=as_json)


@subscriptions.command("pause", short_help="Pause a subscription until 'resume'.")
@takes(GroupSettings)
@_identifier
@click.pass_context
def pause(context: click.Context, identifier: str) -> None:
    """Pause the subscription ID. Meanwhile the stream does not keep messages for it."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import halt

    halt(settings, identifier, paused=True)


@subscriptions.command("resume", short_help="Resume a paused subscription.")
@takes(GroupSettings)
@click.option("--skip", is_flag=True, help="Continue with new changes only, and skip pending changes")
@_identifier
@click.pass_context
def resume(context: click.Context, identifier: str, skip: bool) -> None:
    """Resume the subscription ID at its receiver's position, as far as the stream still has the changes from there on."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import halt

    halt(settings, identifier, paused=False, skip=skip)


@subscriptions.command("replay", short_help="Post earlier changes to a receiver again.")
@takes(GroupSettings)
@click.option(
    "--since",
    default="",
    metavar="TIME",
    help="Start time, like 2026-01-31T12:00:00Z (default: all changes that the stream keeps)",
)
@_identifier
@click.pass_context
def replay(context: click.Context, since: str, identifier: str) -> None:
    """Post again all changes that the group's stream still has to the receiver of the subscription ID, and then continue."""
    settings = load_settings(context, GroupSettings)
    from pgsluice.console.subscriptions.subscription_list import start_again

    start_again(settings, identifier, since)


@subscriptions.command("secret", short_help="Print the secret with which a receiver checks signatures.")
@takes(SubscriptionGroupSettings)
@_identifier
@click.pass_context
def secret(context: click.Context, identifier: str) -> None:
    """Print the secret of the subscription ID, for its receiver only; both secrets during a rotation of subscriptions-secret."""
    settings = load_settings(context, SubscriptionGroupSettings)
    from pgsluice.console.subscriptions.subscription_list import print_secret

    print_secret(settings, identifier)
