# The project's own virtual environment. Sourced by the scripts at the root, after machine.sh.

# Everything the environment is made from; set-up is skipped while this has not changed.
fingerprint() {
    cat pyproject.toml constraints.txt .venv/pyvenv.cfg <(pwd -P) 2>/dev/null | sha256sum
}

make_venv() {
    local python version
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        apt_install "$version-venv" ||
            die "$python cannot make virtual environments. Install the module: sudo apt-get install $version-venv"
    fi
    "$python" -m venv --clear .venv
}

# .venv was made in this folder: its programs name the Python of the place where it was made.
is_venv_of_here() {
    grep -qF -- " $(pwd -P)/.venv" .venv/pyvenv.cfg 2>/dev/null
}

# is_set_up WHAT: .venv was made for that, from what the files say now. Who develops has what the demo needs.
is_set_up() {
    local stamp=.venv/set-up-$1
    [[ -x .venv/bin/python && -f $stamp && $(<"$stamp") == "$(fingerprint)" ]] && return
    [[ $1 == demo ]] && is_set_up dev
}

# set_up WHAT: .venv has an editable install of this checkout with the pinned dependencies of an extra; or, as dev, with
# those of the demo and all tools.
set_up() {
    is_set_up "$1" && return
    say "Setting up .venv (minutes the first time, skipped when nothing has changed)"
    exec {lock}<constraints.txt
    flock "$lock"
    # Who had the lock may have done it, and uses it now.
    is_set_up "$1" || fill_venv "$1"
    exec {lock}<&-
}

fill_venv() {
    local -a pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet) what=(-e ".[$1]")
    [[ $1 != dev ]] || what=(--group dev -e ".[demo]")
    is_venv_of_here && .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv
    # A pip as old as Debian's knows neither dependency groups nor constraints for what a build needs.
    "${pip[@]}" install "$(grep '^pip==' constraints.txt)"
    "${pip[@]}" install -c constraints.txt --build-constraint constraints.txt "${what[@]}"
    fingerprint >".venv/set-up-$1"
}

# Pin every dependency anew, at its newest version the ranges in pyproject.toml allow.
lock() {
    local folder
    folder=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder is known now and gone from scope later
    trap "rm -rf '$folder'" EXIT
    "$(find_python)" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet --upgrade pip
    "$folder/venv/bin/python" -m pip install --quiet --dry-run --ignore-installed --report "$folder/report.json" \
        --group dev ".[notebook]"
    "$folder/venv/bin/python" tools/pins.py "$folder/report.json" >"$folder/constraints.txt"
    cp "$folder/constraints.txt" constraints.txt
    say "constraints.txt is written; './run test' installs it and tells whether it works"
}
