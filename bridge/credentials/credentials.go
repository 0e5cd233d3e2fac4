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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

var (
	errNoKeys        = errors.New("it has no public key")
	errPrivateKey    = errors.New("it has a private key: create a new key pair and store only its public key here")
	errInvalidKey    = errors.New("it is not a public key in the format of authorized_keys")
	errNoAuths       = errors.New("it has no auths")
	errInvalidJSON   = errors.New("it is not a Docker configuration in JSON")
	errInvalidAuth   = errors.New("its auth is not the base64 of user:password")
	errNoCredentials = errors.New("it has neither auth nor username and password")
)

const (
	// maxKeys (in bytes) and maxLines bound the SSH keys. An RSA key of 4096 bits has 750 bytes, and
	// parsing a line allocates memory for each of its options.
	maxKeys  = 256 << 10
	maxLines = 2000
	// maxValues bounds the number of JSON values of a Docker configuration. Each registry has four.
	maxValues = 5000
)

func checkKeysSize(text []byte) error {
	if err := bounds.CheckSize(text, maxKeys); err != nil {
		return err
	}

	if lines := bytes.Count(text, []byte("\n")); lines > maxLines {
		return fmt.Errorf("%w: it has %d lines, and at most %d are allowed", bounds.ErrTooLarge, lines, maxLines)
	}

	return nil
}

// CheckSSHKeys checks that the text holds at least one public key and only public keys, one per line, in
// the format of authorized_keys. It ignores blank lines and comments.
func CheckSSHKeys(text []byte) error {
	if err := checkKeysSize(text); err != nil {
		return err
	}

	if bytes.Contains(text, []byte("PRIVATE KEY-----")) {
		return errPrivateKey
	}

	keys := 0

	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}

		if _, _, _, _, err := ssh.ParseAuthorizedKey(line); err != nil {
			return fmt.Errorf("line %d: %w", i+1, errInvalidKey) // the error of package ssh may contain the line
		}

		keys++
	}

	if keys == 0 {
		return errNoKeys
	}

	return nil
}

// Login is the user name and password for a registry.
type Login struct{ User, Password string }

// DockerConfig holds the logins of a Docker configuration. The key is a registry, or a registry with the
// first part of a repository's path.
type DockerConfig map[string]Login

// ParseDockerConfig parses a Docker configuration in JSON.
func ParseDockerConfig(text []byte) (DockerConfig, error) {
	var file struct {
		Auths map[string]struct {
			Auth     string `json:"auth"`
			Username string `json:"username"`
			Password string `json:"password"`
		} `json:"auths"`
	}
	if err := bounds.CheckJSON(text, maxValues); err != nil {
		return nil, err
	}

	if err := json.Unmarshal(text, &file); err != nil {
		return nil, errInvalidJSON // the error of package json may contain the text
	}

	if len(file.Auths) == 0 {
		return nil, errNoAuths
	}

	out := DockerConfig{}

	for registry, auth := range file.Auths {
		login := Login{auth.Username, auth.Password}

		switch {
		case auth.Auth != "":
			raw, err := base64.StdEncoding.DecodeString(auth.Auth)
			// Docker ignores NUL bytes at the end, too.
			user, password, found := strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")

			if err != nil || !found {
				return nil, fmt.Errorf("auths[%q]: %w", registry, errInvalidAuth)
			}

			login = Login{user, password}
		case login.User == "" || login.Password == "":
			return nil, fmt.Errorf("auths[%q]: %w", registry, errNoCredentials)
		}

		out[normalizeRegistry(registry)] = login
	}

	return out, nil
}

// normalizeRegistry removes the scheme, the API version and the last slash, which old configurations
// have.
func normalizeRegistry(registry string) string {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	registry = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(registry, "/"), "/v1"), "/v2")

	return strings.TrimSuffix(registry, "/")
}

// LoginFor returns the login for a repository, such as quay.io/openshift-release-dev/ocp-release, and
// false if the configuration has none. The entry with the longest matching path wins
// (https://kubernetes.io/docs/concepts/containers/images/#config-json).
func (d DockerConfig) LoginFor(repository string) (Login, bool) {
	for prefix := repository; prefix != ""; {
		if login, found := d[prefix]; found {
			return login, true
		}

		slash := strings.LastIndexByte(prefix, '/')
		if slash < 0 {
			break
		}

		prefix = prefix[:slash]
	}

	if strings.HasPrefix(repository, "docker.io/") {
		login, found := d["index.docker.io"]

		return login, found
	}

	return Login{}, false
}
