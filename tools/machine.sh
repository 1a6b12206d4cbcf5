# What the project needs from the machine: Python, Java, Go. Sourced by the scripts at the root.

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

# Install Debian packages, if this user may do so without being asked anything.
apt_install() {
    local -a as_root=()
    command -v apt-get >/dev/null || return 1
    if [[ $(id -u) != 0 ]]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    local -a get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
    say "Installing through apt: $*"
    # A fresh container has no package lists; a list of somebody else's that cannot be read is no reason to give up.
    "${get[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 && return
    "${get[@]}" update >&2 || true
    "${get[@]}" install -y --no-install-recommends "$@" >&2
}

# The path of a Python that is new enough. A name may exist and not run (pyenv's shims), so each is tried.
find_python() {
    local name
    local -a names=(python3.11 python3.12 python3.13 python3 python3.14 "${HOME:-}"/.pyenv/versions/3.1[1-9]*/bin/python3)
    [[ -n ${PYTHON:-} ]] && names=("$PYTHON")
    for name in "${names[@]}"; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    die "Python 3.11 or newer is needed and none was found (tried: ${names[*]})." \
        "Install one (Debian 12 or newer: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3 ./run …"
}

is_java_17() {
    local text
    [[ -x $1/bin/java ]] || return 1
    text=$("$1/bin/java" -version 2>&1) || return 1
    [[ $text =~ version\ \"([0-9]+) ]] && ((BASH_REMATCH[1] >= 17))
}

# The home of a Java 17 or newer: as named, as on PATH, or where Debian puts them.
find_java() {
    local home on_path
    on_path=$(readlink -f "$(command -v java)" 2>/dev/null) || on_path=""
    for home in "${JAVA_HOME:-}" "${on_path%/bin/java}" /usr/lib/jvm/*; do
        if [[ -n $home ]] && is_java_17 "$home"; then
            printf '%s\n' "$home"
            return
        fi
    done
    return 1
}

# Set JAVA_HOME for what is started from here, installing Java if that is allowed.
need_java() {
    local home package
    if ! home=$(find_java); then
        for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
            apt_install "$package" && break
        done
        home=$(find_java) || die "Spark needs Java 17 or newer and none was found (JAVA_HOME, PATH, /usr/lib/jvm)." \
            "Install one, for example: sudo apt-get install openjdk-17-jre-headless (or openjdk-21-jre-headless)"
    fi
    export JAVA_HOME=$home PATH="$home/bin:$PATH"
}

find_go() {
    command -v go || command -v /usr/local/go/bin/go
}
