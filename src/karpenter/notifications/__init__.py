"""Notifications: events of the controller, posted to webhooks and chats.

``notification_config`` reads the file, ``notification_rules`` and ``notification_batches`` decide what goes where and when, and
``notification_formats`` writes it; all four are pure. ``notifier`` runs that beside the controllers, ``webhook_client`` posts.
Nothing here is durable: the Events in the API server are the record, a notification is a copy that may be lost.
"""
