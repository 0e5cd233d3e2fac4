// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/shell"
)

// shellHypervisor has machines with a console that repeats its input, and whose commands print themselves.
type shellHypervisor struct {
	hypervisor.Provider

	used []hypervisor.MachineRef
}

func (h *shellHypervisor) OpenTerminal(_ context.Context, ref hypervisor.MachineRef) (io.ReadWriteCloser, error) {
	h.used = append(h.used, ref)
	user, machine := net.Pipe()

	go func() { _, _ = io.Copy(machine, machine) }() // until it is closed

	return user, nil
}

func (h *shellHypervisor) Execute(_ context.Context, ref hypervisor.MachineRef, command []string) (hypervisor.ExecResult, error) {
	h.used = append(h.used, ref)

	return hypervisor.ExecResult{Stdout: []byte(strings.Join(command, " ")), ExitCode: 3}, nil
}

// plainHypervisor has no shells.
type plainHypervisor struct{ hypervisor.Provider }

// shellClusters has one cluster, or none on a replica that is not the leader.
type shellClusters struct{ provider hypervisor.Provider }

func (c shellClusters) Get(string) (hypervisor.Provider, bool) { return c.provider, c.provider != nil }

// authorize knows one token that may use shells, and one that may not.
func authorize(_ context.Context, token, _, _ string) (string, int, error) {
	switch token {
	case "admin":
		return "alice", http.StatusOK, nil
	case "user":
		return "bob", http.StatusForbidden, nil
	case "":
		return "", http.StatusUnauthorized, nil
	default:
		return "", 0, errors.New("the API server does not respond")
	}
}

// TestShell checks that only accounts with the permission can use a machine's shell, that the handler requests the
// claim's machine from the hypervisor, and that every use causes an event.
func TestShell(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	machine := newClaim(namespace, "linux-a")
	machine.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "one", VMID: "7"}
	claim := createClaim(t, machine)
	createClaim(t, newClaim(namespace, "linux-b"))

	provider, recorder := &shellHypervisor{}, events.NewFakeRecorder(10)
	newHandler := func(p hypervisor.Provider) http.Handler {
		h := &shell.Handler{Client: env.Client, Clusters: shellClusters{p}, Recorder: recorder, Authorize: authorize}

		return h.Routes()
	}

	for name, tt := range map[string]struct {
		provider    hypervisor.Provider
		token, path string
		body        string
		want        int
		text        string
	}{
		"command":             {provider, "admin", "linux-a/command", `{"command":["id","-u"]}`, http.StatusOK, `"exitCode":3`},
		"no token":            {provider, "", "linux-a/command", `{"command":["id"]}`, http.StatusUnauthorized, "token"},
		"no permission":       {provider, "user", "linux-a/command", `{"command":["id"]}`, http.StatusForbidden, "bob may not use the shell"},
		"no decision":         {provider, "other", "linux-a/command", `{"command":["id"]}`, http.StatusServiceUnavailable, "try again"},
		"no claim":            {provider, "admin", "none/command", `{"command":["id"]}`, http.StatusNotFound, "does not exist"},
		"no machine":          {provider, "admin", "linux-b/command", `{"command":["id"]}`, http.StatusConflict, "no machine yet"},
		"no command":          {provider, "admin", "linux-a/command", `{}`, http.StatusBadRequest, "no command"},
		"not the leader":      {nil, "admin", "linux-a/command", `{"command":["id"]}`, http.StatusServiceUnavailable, "not the leader"},
		"no guest agent":      {plainHypervisor{}, "admin", "linux-a/command", `{"command":["id"]}`, http.StatusNotImplemented, "use SSH"},
		"no console":          {plainHypervisor{}, "admin", "linux-a/console", "", http.StatusNotImplemented, "hypervisor's own console"},
		"console, no upgrade": {provider, "admin", "linux-a/console", "", http.StatusUpgradeRequired, "Upgrade"},
	} {
		method := http.MethodPost
		if strings.HasSuffix(tt.path, "console") {
			method = http.MethodGet
		}

		request := httptest.NewRequestWithContext(t.Context(), method, "/machines/"+namespace+"/"+tt.path, strings.NewReader(tt.body))
		request.Header.Set(shell.TokenHeader, tt.token)

		answer := httptest.NewRecorder()
		newHandler(tt.provider).ServeHTTP(answer, request)

		if answer.Code != tt.want || !strings.Contains(answer.Body.String(), tt.text) {
			t.Errorf("%s: got %d %s, want %d %s", name, answer.Code, answer.Body, tt.want, tt.text)
		}
	}

	checkConsole(t, newHandler(provider), namespace)

	if len(provider.used) != 2 || provider.used[0].ID != 7 || provider.used[0].Owner.UID != string(claim.UID) {
		t.Errorf("the handler requested %+v from the hypervisor, want the machine of the claim twice", provider.used)
	}

	for _, want := range []string{"Normal CommandRun alice ran a command in VM 7", "Normal ConsoleOpened alice opened the console of VM 7"} {
		if got := <-recorder.Events; got != want {
			t.Errorf("event %q, want %q", got, want)
		}
	}
}

// checkConsole opens the console over a real connection, and checks that it passes input and output on.
func checkConsole(t *testing.T, handler http.Handler, namespace string) {
	t.Helper()

	server := httptest.NewServer(handler)
	defer server.Close()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/machines/"+namespace+"/linux-a/console", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	request.Header = http.Header{shell.TokenHeader: {"admin"}, "Connection": {"Upgrade"}, "Upgrade": {shell.Protocol}}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}

	stream, ok := response.Body.(io.ReadWriteCloser)
	if response.StatusCode != http.StatusSwitchingProtocols || !ok {
		t.Fatalf("status %d, want a stream", response.StatusCode)
	}
	defer stream.Close()

	if _, err := io.WriteString(stream, "hello"); err != nil {
		t.Fatal(err)
	}

	answer := make([]byte, 5)
	if _, err := io.ReadFull(stream, answer); err != nil || string(answer) != "hello" {
		t.Errorf("the console answered %q (%v)", answer, err)
	}
}
