// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vault gives tests a real secrets manager: Vault's own core with the methods jwt
// and cert and the engine kv, on the loopback interface, by TLS.
//
//	server := vault.Start(t)
//	server.MountKV(t, "secret", 2)
//	server.Put(t, "secret/data/runners/team-a", map[string]any{"data": map[string]any{"runner_token": "..."}})
//
// hack/setup.sh vault makes the program (hack/tools/vault); it is found as those of test/kube
// are. What was started ends with the test; a test that failed shows the log.
package vault
