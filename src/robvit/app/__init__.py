"""The playground in the browser: `session` computes, `page` shows, `gate` guards."""
