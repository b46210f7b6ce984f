"""The search sink: rows as documents of OpenSearch or Elasticsearch, at least once with exact effect.

``sink`` names the steps. Tasks make documents (``document``, by the fields of ``mapping``), keep the last one of each
key (``document_fold``) and send them themselves (``bulk_delivery``, in the requests of ``bulk``). Each operation
carries its commit LSN as its version, so the server itself refuses older ones: a batch can come again, and tasks may
finish in any order. Changes that need a document's earlier content wait for the driver (``patches``). ``index`` knows
names and generations, ``server_connection`` the HTTP.
"""
