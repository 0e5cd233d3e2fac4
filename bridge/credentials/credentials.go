// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

var (
	errNoKeys   = errors.New("it holds no public key")
	errPrivate  = errors.New("it holds a private key: put the public one there, and make a new pair")
	errKeyLine  = errors.New("it is no public key in the form of authorized_keys")
	errNoAuths  = errors.New("it has no auths")
	errJSON     = errors.New("it is no Docker configuration in JSON")
	errAuth     = errors.New("its auth is not the base64 of user:password")
	errNoSecret = errors.New("it has neither auth nor user and password")
)

const (
	// maxKeys and maxLines are what keys may have: one of RSA and 4096 bits has 750 bytes, and
	// reading a line takes memory for each of its options.
	maxKeys  = 256 << 10
	maxLines = 2000
	// maxValues is what a Docker configuration may have: four for each registry.
	maxValues = 5000
)

func boundKeys(text []byte) error {
	if err := inputbound.Text(text, maxKeys); err != nil {
		return err
	}

	if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
		return fmt.Errorf("%w: it has %d lines: %d at most", inputbound.ErrTooLarge, lines, maxLines)
	}

	return nil
}

// CheckSSHKeys checks that a text holds public keys, one on each line, as authorized_keys
// has them. Blank lines and comments are passed over.
func CheckSSHKeys(text []byte) error {
	if err := boundKeys(text); err != nil {
		return err
	}

	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		return errPrivate
	}

	keys := 0

	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}

		if _, _, _, _, err := ssh.ParseAuthorizedKey(line); err != nil {
			return fmt.Errorf("line %d: %w", i+1, errKeyLine) // ssh's own error may quote the line
		}

		keys++
	}

	if keys == 0 {
		return errNoKeys
	}

	return nil
}

// Login is a user of a registry.
type Login struct{ User, Password string }

// Docker is a Docker configuration: logins by registry, or by registry and the beginning of
// a repository's path.
type Docker map[string]Login

// ReadDocker reads a Docker configuration in JSON.
func ReadDocker(text []byte) (Docker, error) {
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth"`
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if err := inputbound.JSON(text, maxValues); err != nil {
		return nil, err
	}

	if err := json.Unmarshal(text, &file); err != nil {
		return nil, errJSON // json's own error may quote the text
	}

	if len(file.Auths) == 0 {
		return nil, errNoAuths
	}

	out := Docker{}

	for registry, auth := range file.Auths {
		login := Login{auth.Username, auth.Password}

		switch {
		case auth.Auth != "":
			raw, err := base64.StdEncoding.DecodeString(auth.Auth)
			user, password, found := strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")

			if err != nil || !found {
				return nil, fmt.Errorf("auths[%q]: %w", registry, errAuth)
			}

			login = Login{user, password}
		case login.User == "" || login.Password == "":
			return nil, fmt.Errorf("auths[%q]: %w", registry, errNoSecret)
		}

		out[key(registry)] = login
	}

	return out, nil
}

// key is a registry without what old configurations have around it.
func key(registry string) string {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	registry = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(registry, "/"), "/v1"), "/v2")

	return strings.TrimSuffix(registry, "/")
}

// For gives the login for a repository such as quay.io/openshift-release-dev/ocp-release:
// that with the longest path wins
// (https://kubernetes.io/docs/concepts/containers/images/#config-json).
func (d Docker) For(repository string) (Login, bool) {
	for at := repository; at != ""; {
		if login, found := d[at]; found {
			return login, true
		}

		cut := strings.LastIndexByte(at, '/')
		if cut < 0 {
			break
		}

		at = at[:cut]
	}

	if strings.HasPrefix(repository, "docker.io/") {
		login, found := d["index.docker.io"]

		return login, found
	}

	return Login{}, false
}
