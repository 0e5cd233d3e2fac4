// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/shell"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// shellMachine is a machine whose commands print themselves, and whose console repeats its input.
type shellMachine struct{ hypervisor.Provider }

// shellClusters has one cluster with one machine.
type shellClusters struct{}

func (shellClusters) Get(string) (hypervisor.Provider, bool) { return shellMachine{}, true }

func (shellMachine) Execute(_ context.Context, _ hypervisor.MachineRef, command []string) (hypervisor.ExecResult, error) {
	code := 0
	if command[0] == "false" {
		code = 7
	}

	return hypervisor.ExecResult{Stdout: []byte("ran " + strings.Join(command, "|") + "\n"), Stderr: []byte("as root\n"), ExitCode: code}, nil
}

func (shellMachine) OpenTerminal(context.Context, hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	user, machine := net.Pipe()

	go func() {
		typed := make([]byte, 3)
		_, _ = io.ReadFull(machine, typed)
		_, _ = io.WriteString(machine, "login: "+string(typed))
		_ = machine.Close() // the machine powers off
	}()

	return user, nil
}

// startShellOperator starts a server with the operator's routes for shells. The first response is that of a replica that is
// not the leader. The path of the API server's proxy leads there as well.
func startShellOperator(t *testing.T, token string) (server *httptest.Server, caFile string) {
	t.Helper()

	var requests atomic.Int32

	handler := &shell.Handler{
		Client: env.Client, Clusters: shellClusters{}, Recorder: events.NewFakeRecorder(100),
		Authorize: func(_ context.Context, got, _, _ string) (string, int, error) {
			switch {
			case requests.Add(1) == 1:
				return "", http.StatusServiceUnavailable, nil
			case got != token:
				return "", http.StatusUnauthorized, nil
			default:
				return "alice", http.StatusOK, nil
			}
		},
	}
	routes := handler.Routes()

	const proxy = "/api/v1/namespaces/hyperfleet-system/services/https:hyperfleet-webhooks:webhooks/proxy"

	mux := http.NewServeMux()
	mux.Handle(shell.Prefix, routes)
	mux.Handle(proxy+"/", http.StripPrefix(proxy, routes))

	server = httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)

	caFile = filepath.Join(t.TempDir(), "ca.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})

	if err := os.WriteFile(caFile, content, 0o600); err != nil {
		t.Fatal(err)
	}

	return server, caFile
}

// The commands reach a machine through the operator, directly or through the API server, and repeat requests to replicas
// that are not the leader.
func TestShellCommands(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "linux-a"},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: v1alpha1.Workload{
				Type:   v1alpha1.WorkloadGitHubActions,
				Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{"linux"}}},
			},
		},
	}
	env.Create(t, claim)

	claim.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "one", VMID: "7"}
	if err := env.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	account := env.ServiceAccount(t, namespace, "user")
	server, ca := startShellOperator(t, account.BearerToken)
	direct := []string{"-n", namespace, "--server", server.URL, "--server-ca", ca, "linux-a"}
	on := func(command string, more ...string) []string {
		return append(append([]string{command}, direct...), more...)
	}

	execute(t, account, on("shell", "--", "id", "-u")...).expectSuccess(t, "ran id|-u\n", "as root\n")
	execute(t, account, on("shell", "--", "false")...).expectFailure(t, 7)
	executeWithInput(t, "uptime\n\nexit\n", account, on("shell")...).expectSuccess(t, "ran /bin/sh|-c|uptime\n")
	executeWithInput(t, "abc", account, on("console")...).expectSuccess(t, "login: abc")
	execute(t, account, "shell", "-n", namespace, "--server", "http://example.com", "linux-a").expectFailure(t, anyCode, "https URL")
	execute(t, env.ServiceAccount(t, namespace, "other"), on("shell", "--", "id")...).expectFailure(t, anyCode, "401", "token")

	// Through the API server, whose part the server plays.
	authority, err := os.ReadFile(ca)
	must.Do(t, err)

	api := &rest.Config{Host: server.URL, BearerToken: account.BearerToken, TLSClientConfig: rest.TLSClientConfig{CAData: authority}}
	execute(t, api, "shell", "-n", namespace, "linux-a", "--", "id").expectSuccess(t, "ran id\n")
	executeWithInput(t, "abc", api, "console", "-n", namespace, "linux-a").expectSuccess(t, "login: abc")
}
