// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credentials_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/bridge/credentials"
)

const normalizeRegistry = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

func TestSSHKeys(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ text, want string }{
		"one":               {normalizeRegistry, ""},
		"with a name":       {normalizeRegistry + " admin@example.com\n", ""},
		"two and a comment": {"# admins\n" + normalizeRegistry + "\n\n" + normalizeRegistry + " b\r\n", ""},
		"with an option":    {"no-pty " + normalizeRegistry, ""},
		"nothing":           {"\n\n", "it has no public key"},
		"comments alone":    {"# none", "it has no public key"},
		"words":             {normalizeRegistry + "\ntop-secret", "line 2: it is not a public key"},
		"cut off":           {normalizeRegistry[:40], "line 1: it is not a public key"},
		"type alone":        {"ssh-ed25519", "line 1: it is not a public key"},
		"private":           {"-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "it has a private key"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, credentials.CheckSSHKeys([]byte(tc.text)), tc.want)
		})
	}
}

func check(t *testing.T, err error, want string) {
	t.Helper()

	switch {
	case want == "" && err != nil:
		t.Error(err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("got %v, want %q", err, want)
	case err != nil && strings.Contains(err.Error(), "top-secret"):
		t.Errorf("the error contains the secret: %v", err)
	}
}

func TestDockerIsRead(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ text, want string }{
		"auth":            {`{"auths": {"quay.io": {"auth": "dXNlcjpwYXNz", "email": "a@example.com"}}}`, ""},
		"user":            {`{"auths": {"quay.io": {"username": "user", "password": "pass"}}}`, ""},
		"helper beside":   {`{"auths": {"quay.io": {"auth": "dXNlcjpwYXNz"}}, "credsStore": "x"}`, ""},
		"words":           {"top-secret", "it is not a Docker configuration in JSON"},
		"list":            {`["top-secret"]`, "it is not a Docker configuration in JSON"},
		"nothing":         {"{}", "it has no auths"},
		"no colon":        {`{"auths": {"quay.io": {"auth": "dG9wLXNlY3JldA=="}}}`, `auths["quay.io"]: its auth is not`},
		"no base64":       {`{"auths": {"quay.io": {"auth": "top-secret"}}}`, `auths["quay.io"]: its auth is not`},
		"empty":           {`{"auths": {"quay.io": {}}}`, "it has neither auth nor username and password"},
		"user alone":      {`{"auths": {"quay.io": {"username": "user"}}}`, "it has neither auth nor username and password"},
		"auths of a word": {`{"auths": {"quay.io": "top-secret"}}`, "it is not a Docker configuration in JSON"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			logins, err := credentials.ParseDockerConfig([]byte(tc.text))
			check(t, err, tc.want)

			if login, found := logins.LoginFor("quay.io/a/b"); tc.want == "" && (!found || login != (credentials.Login{User: "user", Password: "pass"})) {
				t.Errorf("login %v", login)
			}
		})
	}
}

func TestLongestPathWins(t *testing.T) {
	t.Parallel()

	logins, err := credentials.ParseDockerConfig([]byte(`{"auths": {
		"https://index.docker.io/v1/": {"username": "hub", "password": "p"},
		"quay.io": {"username": "all", "password": "p"},
		"quay.io/openshift": {"username": "openshift", "password": "p"},
		"127.0.0.1:5000": {"username": "local", "password": "p"}
	}}`))
	if err != nil {
		t.Fatal(err)
	}

	for repository, want := range map[string]string{
		"quay.io/other/a": "all", "quay.io/openshift/a": "openshift", "quay.io/openshift2/a": "all",
		"docker.io/library/a": "hub", "127.0.0.1:5000/a": "local", "127.0.0.1/a": "", "quay.io.example.com/a": "",
	} {
		if login, _ := logins.LoginFor(repository); login.User != want {
			t.Errorf("%s: %q, want %q", repository, login.User, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(normalizeRegistry))
	f.Add([]byte(`{"auths": {"quay.io": {"auth": "dXNlcjpwYXNz"}}}`))
	f.Add([]byte("\xff\n\x00"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_ = credentials.CheckSSHKeys(text)

		if logins, err := credentials.ParseDockerConfig(text); err == nil {
			_, _ = logins.LoginFor("quay.io/a/b")
		}
	})
}
