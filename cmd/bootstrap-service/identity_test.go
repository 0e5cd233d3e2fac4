// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/identity"
	identityspire "github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/vault"
)

// TestProgramWithAnIdentityOfSPIRE checks the memory limit of the program also for a machine that attests and logs in to
// a secrets manager.
func TestProgramWithAnIdentityOfSPIRE(t *testing.T) {
	t.Parallel()

	server, manager := spire.Start(t), vault.Start(t)
	id := identity.ID{Namespace: "ci", Name: "r", UID: "4f2c8a3e"}

	registry, err := identityspire.New(identityspire.Options{
		Address: "unix://" + server.Socket, TrustDomain: server.TrustDomain, MachineAddress: server.Address, OperatorUID: "op",
		Selectors: []string{"unix:uid:" + strconv.Itoa(os.Getuid()), "unix:path:" + program},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = registry.Close() })

	attestation, err := registry.Register(t.Context(), identity.Machine{ID: id, Method: identity.JoinToken})
	if err != nil {
		t.Fatal(err)
	}

	manager.MountKV(t, "secret", 2)
	manager.WriteKV(t, "secret", "runner", map[string]any{"jit_config": "jit-blob-secret"})
	manager.WritePolicy(t, "runners", `path "secret/data/runner" { capabilities = ["read"] }`)
	manager.EnableCert(t, "cert")
	manager.WriteCertRole(t, "cert", "runner", server.Bundle(t), id.URI(server.TrustDomain), "runners")

	data, err := json.Marshal(api.Config{
		Method: api.MethodExternalSecrets, Platform: "github-actions", RunnerName: "r",
		SPIFFE: &api.SPIFFE{
			Enabled: true, JoinToken: attestation.JoinToken, SPIFFEID: id.URI(server.TrustDomain), TrustDomain: server.TrustDomain,
			ServerAddress: attestation.ServerAddress, TrustBundle: attestation.TrustBundle,
		},
		Secrets: &api.Secrets{
			Address: manager.Address, CABundle: manager.CABundle, Auth: api.SecretsAuthCert, Role: "runner", Path: "secret/data/runner",
		},
	})
	if err != nil {
		t.Fatal(err)
	}

	most, out := runAttested(t, string(data))
	t.Logf("peak memory %d KiB", most)

	if most > maxMemory {
		t.Errorf("peak memory %d KiB, at most %d are allowed", most, maxMemory)
	}

	for _, text := range []string{"phase=Attested", "phase=Finished reason=JobDone"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %s in\n%s", text, out)
		}
	}

	if strings.Contains(out, "jit-blob-secret") || strings.Contains(out, attestation.JoinToken) {
		t.Errorf("a credential is in the log:\n%s", out)
	}
}

// runAttested runs the program in a root folder with spire-agent, and returns its peak memory in KiB and its output.
func runAttested(t *testing.T, config string) (most int, out string) {
	t.Helper()

	const works = `echo "Listening for Jobs"; echo "Running job: a"; echo "Job a completed with result: Succeeded"`

	dir := filepath.Join(loopback.SocketFolder(t), "root")
	if err := os.Rename(createRoot(t, works, config), dir); err != nil {
		t.Fatal(err)
	}

	agent := filepath.Join(dir, api.AgentPath)
	if err := os.MkdirAll(filepath.Dir(agent), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(spire.AgentProgram(t), agent); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer

	cmd := exec.Command(program, "--root", dir)
	cmd.Stdout, cmd.Stderr = &log, &log

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	peak := watchMemory(cmd.Process.Pid)
	_ = cmd.Wait()

	return peak(), log.String()
}
