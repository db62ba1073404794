"""The dashboard's entry: it only routes. One file a page stands in ``views/``."""

from __future__ import annotations

import streamlit as st
from vramscope.app.welcome import store_errors

st.set_page_config(page_title="vramscope", page_icon="📊", layout="wide")

page = st.navigation(
    [
        st.Page("views/runs.py", title="Runs", default=True),
        st.Page("views/run.py", title="Run", url_path="run"),
        st.Page("views/compare.py", title="Compare", url_path="compare"),
        st.Page("views/plan.py", title="Plan", url_path="plan"),
        st.Page("views/report.py", title="Report", url_path="report"),
    ],
    position="top",
)
with store_errors():
    page.run()
