// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vault runs a real secrets manager for tests: Vault's own core with the auth methods jwt and cert
// and the secrets engine kv, on the loopback interface with TLS.
//
//	server := vault.Start(t)
//	server.MountKV(t, "secret", 2)
//	server.Write(t, "secret/data/runners/team-a", map[string]any{"data": map[string]any{"runner_token": "..."}})
//
// hack/setup.sh vault builds the program (hack/tools/vault). The server is stopped when the test ends. If
// the test has failed, the log is printed.
package vault
