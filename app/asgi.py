"""The dashboard as a web application: its pages, plus routes and headers around them.

``streamlit run app/asgi.py`` finds ``app`` in here. ``vramscope ui`` starts exactly that.
"""

from __future__ import annotations

import streamlit as st
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from vramscope.app.headers import SecurityHeaders
from vramscope.app.routes import ROUTES
from vramscope.app.serve import ADDRESS

app = st.App(
    "main.py",
    routes=ROUTES,
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", ADDRESS]),
        Middleware(SecurityHeaders),
    ],
)
