// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package shell

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Prefix of the routes, and their patterns.
const (
	Prefix         = "/machines/"
	ConsolePattern = "GET /machines/{namespace}/{name}/console"
	CommandPattern = "POST /machines/{namespace}/{name}/command"
)

// TokenHeader has the user's bearer token. The proxy of the API server removes the header Authorization.
const TokenHeader = "Hyperfleet-Token"

// Protocol is the value of the header Upgrade for a console. After the response, the connection carries the console's
// output and input as they are.
const Protocol = "hyperfleet-console"

const (
	// maxCommand limits the size of a command in bytes, and commandTimeout its duration.
	maxCommand     = 64 << 10
	commandTimeout = 90 * time.Second
	// openTimeout limits how long it takes to open a console, and maxSession how long it stays open.
	openTimeout = 15 * time.Second
	maxSession  = 8 * time.Hour
	// maxSessions limits the consoles that are open at the same time.
	maxSessions = 32
)

// Command is the body of a request for a command.
type Command struct {
	Command []string `json:"command"`
}

// Result is the body of the response.
type Result struct {
	Stdout   []byte `json:"stdout"`
	Stderr   []byte `json:"stderr"`
	ExitCode int    `json:"exitCode"`
}

// Authorizer returns the name of the account of a token, and the HTTP status for its request to use the shell of a
// claim's machine. Only status 200 permits the request. An error means that there is no decision.
type Authorizer func(ctx context.Context, token, namespace, claim string) (account string, status int, err error)

// Clusters returns the connection to a HypervisorCluster. Only the leader has connections.
type Clusters interface {
	Get(name string) (hypervisor.Provider, bool)
}

// Handler handles requests for shells and consoles. Every use is an event of the claim.
type Handler struct {
	Client    client.Client
	Clusters  Clusters
	Recorder  events.EventRecorder
	Authorize Authorizer

	sessions chan struct{}
}

// Routes returns the handler of the routes.
func (h *Handler) Routes() http.Handler {
	h.sessions = make(chan struct{}, maxSessions)
	mux := http.NewServeMux()
	mux.HandleFunc(ConsolePattern, h.serve(h.openConsole))
	mux.HandleFunc(CommandPattern, h.serve(h.runCommand))

	return mux
}

// request is an authorized request.
type request struct {
	*http.Request

	account  string
	claim    *v1alpha1.MachineClaim
	provider hypervisor.Provider
	ref      hypervisor.MachineRef
}

// refusal is an error that the user sees.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// serve authorizes requests and finds their machines.
func (h *Handler) serve(handle func(http.ResponseWriter, *request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		found, err := h.authorizeRequest(r)
		if err == nil {
			err = handle(w, found)
		}

		var refused *refusal

		switch {
		case err == nil:
		case errors.As(err, &refused):
			http.Error(w, refused.text, refused.status)
		case hypervisor.Is(err, hypervisor.NotFound), hypervisor.Is(err, hypervisor.Rejected):
			http.Error(w, err.Error(), http.StatusConflict)
		default:
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}
}

// authorizeRequest returns the request with its claim and machine if the user may use the machine's shell. Otherwise it returns
// a refusal.
func (h *Handler) authorizeRequest(r *http.Request) (*request, error) {
	namespace, name := r.PathValue("namespace"), r.PathValue("name")

	account, status, err := h.Authorize(r.Context(), r.Header.Get(TokenHeader), namespace, name)

	switch {
	case err != nil || status == http.StatusServiceUnavailable:
		return nil, &refusal{http.StatusServiceUnavailable, "this replica is not the leader, or is busy: try again"}
	case status == http.StatusForbidden:
		return nil, &refusal{status, account + " may not use the shell of MachineClaim " + namespace + "/" + name +
			": grant the verb get on machineclaims/shell"}
	case status != http.StatusOK:
		return nil, &refusal{http.StatusUnauthorized, "the token is missing or is not valid"}
	}

	out := &request{Request: r, account: account, claim: &v1alpha1.MachineClaim{}}

	err = h.Client.Get(r.Context(), client.ObjectKey{Namespace: namespace, Name: name}, out.claim)
	if apierrors.IsNotFound(err) {
		return nil, &refusal{http.StatusNotFound, "MachineClaim " + namespace + "/" + name + " does not exist"}
	}

	if err != nil {
		return nil, err
	}

	vm := out.claim.Status.VMRef
	if vm == nil {
		return nil, &refusal{http.StatusConflict, "MachineClaim " + namespace + "/" + name + " has no machine yet"}
	}

	var isConnected bool
	if out.provider, isConnected = h.Clusters.Get(vm.HypervisorCluster); !isConnected {
		return nil, &refusal{
			http.StatusServiceUnavailable,
			"this replica is not the leader, or HypervisorCluster " + vm.HypervisorCluster + " is not connected: try again",
		}
	}

	out.ref.Owner = hypervisor.Owner{Namespace: namespace, Name: name, UID: string(out.claim.UID), Pool: out.claim.PoolName()}
	out.ref.ID, _ = strconv.Atoi(vm.VMID)

	return out, nil
}

// record emits an event about the use of a machine. The arguments of format are the account and the ID of the VM.
func (h *Handler) record(r *request, reason, format string) {
	h.Recorder.Eventf(r.claim, nil, corev1.EventTypeNormal, reason, "Shell", format, r.account, r.claim.Status.VMRef.VMID)
}

// runCommand runs one command in the machine.
func (h *Handler) runCommand(w http.ResponseWriter, r *request) error {
	executor, ok := hypervisor.Find[hypervisor.Executor](r.provider)
	if !ok {
		return &refusal{http.StatusNotImplemented, "this hypervisor cannot run commands in machines: use SSH"}
	}

	var command Command

	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCommand)).Decode(&command)
	if err != nil || len(command.Command) == 0 {
		return &refusal{http.StatusBadRequest, "the request has no command"}
	}

	// The event does not name the command, which may contain a secret.
	h.record(r, "CommandRun", "%s ran a command in VM %s")

	ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
	defer cancel()

	got, err := executor.Execute(ctx, r.ref, command.Command)
	if err != nil {
		return err
	}

	w.Header().Set("Content-Type", "application/json")

	return json.NewEncoder(w).Encode(Result{Stdout: got.Stdout, Stderr: got.Stderr, ExitCode: got.ExitCode})
}

// openConsole connects the user to the live console of the machine.
func (h *Handler) openConsole(w http.ResponseWriter, r *request) error {
	opener, ok := hypervisor.Find[hypervisor.Terminal](r.provider)
	if !ok {
		return &refusal{
			http.StatusNotImplemented, "the operator cannot open consoles of this hypervisor: use the hypervisor's own console",
		}
	}

	if r.Header.Get("Upgrade") != Protocol {
		return &refusal{http.StatusUpgradeRequired, "the request must have the header Upgrade: " + Protocol}
	}

	select {
	case h.sessions <- struct{}{}:
		defer func() { <-h.sessions }()
	default:
		return &refusal{http.StatusServiceUnavailable, "too many consoles are open: try again"}
	}

	ctx, cancel := context.WithTimeout(r.Context(), openTimeout)
	defer cancel()

	console, err := opener.OpenTerminal(ctx, r.ref)
	if err != nil {
		return err
	}
	defer console.Close() //nolint:errcheck // the user has left

	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the console has ended

	h.record(r, "ConsoleOpened", "%s opened the console of VM %s")

	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+Protocol+"\r\n\r\n")
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(maxSession))

		relay(console, conn, buffered)
	}

	return nil
}

// relay copies output and input until one side ends.
func relay(console io.ReadWriter, conn io.Writer, input io.Reader) {
	ended := make(chan struct{}, 2)

	go func() {
		_, _ = io.Copy(conn, console)

		ended <- struct{}{}
	}()

	go func() {
		_, _ = io.Copy(console, input)

		ended <- struct{}{}
	}()

	<-ended
}
