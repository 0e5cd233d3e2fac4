// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package budgets_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// TestLargeKeysAreRejected checks that a private key with which a signature would take minutes is rejected before
// it is parsed.
func TestLargeKeysAreRejected(t *testing.T) {
	t.Parallel()

	large := fill(40<<10, "-----BEGIN RSA PRIVATE KEY-----\n", "a", "\n-----END RSA PRIVATE KEY-----\n")

	for name, use := range map[string]func() error{
		"GitHub App": func() error {
			_, err := github.New(github.Config{Settings: &github.Settings{
				App: &github.App{AppID: "1", PrivateKey: []byte(large), InstallationID: 1}, Organization: "o",
			}})

			return err
		},
		"hypervisor": func() error {
			_, err := hypervisor.NewTLSConfig(nil, []byte("c"), []byte(large))

			return err
		},
		"host": func() error {
			_, err := ssh.New(ssh.Options{}).Dial(t.Context(), ssh.Target{Address: "127.0.0.1:1", PrivateKey: log.NewSecret(large)})

			return err
		},
		"kubeconfig": func() error {
			_, err := credential.RESTConfig([]byte(`{apiVersion: v1, kind: Config, users: [{name: a, user: {client-key-data: ` +
				base64.StdEncoding.EncodeToString([]byte(large)) + `}}]}`))

			return err
		},
	} {
		if err := use(); err == nil || !strings.Contains(err.Error(), "too large: the private key has 40960 bytes, at most 8192 are allowed") {
			t.Errorf("%s: error %.200v", name, err)
		}
	}
}
