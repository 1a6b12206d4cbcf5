"""One client's way with the auth servers: what it may do, and the question that is open."""

from pyspark_nsq.broker.auth import AuthQuestion, AuthState


class FatalError(Exception):
    """A command that ends the connection, with the code and the text that the client is told."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class QuestionOpenError(Exception):
    """The command can go on only when ``ClientAuth.question`` has been answered; then it is executed again."""


class ClientAuth:
    """Authorizations have a time to live; the first command after it asks again."""

    def __init__(self, *, enabled: bool, remote_ip: str) -> None:
        self.enabled = enabled
        self.state: AuthState | None = None
        self.question: AuthQuestion | None = None
        self._remote_ip = remote_ip
        self._secret = b""
        self._answers: list[AuthState | None] = []

    def answer(self, state: AuthState | None) -> None:
        """The auth server's verdict on ``question``; None where none could be had."""
        self.question = None
        self._answers.append(state)

    def authenticate(self, secret: bytes, common_name: str | None) -> AuthState:
        """AUTH; ``common_name`` is that of the client's certificate, None without TLS."""
        if self.state is not None:
            raise FatalError("E_INVALID", "AUTH already set")
        if not self.enabled:
            raise FatalError("E_AUTH_DISABLED", "AUTH disabled")
        self._secret = secret
        state = self._ask(common_name)
        if not state.authorizations:
            raise FatalError("E_UNAUTHORIZED", "AUTH no authorizations found")
        self.state = state
        return state

    def demand(self, word: str) -> AuthState:
        """That AUTH came before this command."""
        if self.state is None:
            raise FatalError("E_AUTH_FIRST", f"AUTH required before {word}")
        return self.state

    def check(self, word: str, topic: str, channel: str | None, common_name: str | None, now: int) -> None:
        """That the client may publish to the topic, or subscribe to its channel."""
        state = self.demand(word)
        if state.expires_at <= now:
            state = self.state = self._ask(common_name)
        allowed = state.allows_publish(topic) if channel is None else state.allows_subscribe(topic, channel)
        if not allowed:
            raise FatalError("E_UNAUTHORIZED", f'AUTH failed for {word} on "{topic}" "{channel or ""}"')

    def _ask(self, common_name: str | None) -> AuthState:
        """The answer, if it is here; else the question is open now."""
        if not self._answers:
            self.question = AuthQuestion(self._secret, self._remote_ip, common_name is not None, common_name or "")
            raise QuestionOpenError
        state = self._answers.pop()
        if state is None:
            raise FatalError("E_AUTH_FAILED", "AUTH failed")
        return state
