// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// agentFiles are the files of a spire-agent.
type agentFiles struct {
	dir, config, socket string
}

// maxSocketPath is the longest path of a socket (sun_path of unix(7)).
const maxSocketPath = 107

// writeAgentFiles writes the agent's configuration (SPIRE's doc/spire_agent.md) and the
// bundle that verifies its server. The token is in the file: arguments and environments of
// processes can be read by others.
func writeAgentFiles(dir string, cfg *guest.SPIFFE, attestor string) (agentFiles, error) {
	files := agentFiles{dir: dir, config: filepath.Join(dir, "agent.conf"), socket: filepath.Join(dir, "agent.sock")}
	bundle := filepath.Join(dir, "bundle.pem")

	if len(files.socket) > maxSocketPath {
		return files, fmt.Errorf("the path %s is too long for a socket: at most %d bytes are", files.socket, maxSocketPath)
	}

	host, port, err := net.SplitHostPort(cfg.ServerAddress)
	if err != nil {
		return files, fmt.Errorf("address of the SPIRE server: %w", err)
	}

	settings := [][2]string{
		{"data_dir", filepath.Join(dir, "data")}, {"log_level", "INFO"}, {"log_format", "json"},
		{"trust_domain", cfg.TrustDomain}, {"server_address", host}, {"server_port", port},
		{"socket_path", files.socket}, {"trust_bundle_path", bundle},
	}

	if cfg.JoinToken != "" {
		settings = append(settings, [2]string{"join_token", cfg.JoinToken})
	}

	var text strings.Builder

	text.WriteString("agent {\n")

	for _, setting := range settings {
		fmt.Fprintf(&text, "\t%s = %s\n", setting[0], strconv.Quote(setting[1]))
	}

	// The keys live in the agent's memory and end with it. The entries of machines select
	// by the path of this program, which the agent looks for if it is told to.
	fmt.Fprintf(&text, "}\nplugins {\n%s\nKeyManager \"memory\" { plugin_data {} }\n"+
		"WorkloadAttestor \"unix\" { plugin_data {\n\tdiscover_workload_path = true\n\tworkload_size_limit = -1\n} }\n}\n", attestor)

	for file, content := range map[string]string{files.config: text.String(), bundle: cfg.TrustBundle} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return files, fmt.Errorf("write file: %w", err)
		}
	}

	return files, nil
}

// agent is a running spire-agent.
type agent struct {
	cmd    *exec.Cmd
	exited chan struct{}
	// troubles are what it says of its attestation; what nobody takes in time is dropped.
	troubles chan trouble
	last     lastLines
	once     sync.Once
}

// lastWords are what it said in the end.
func (a *agent) lastWords() string { return cmp.Or(a.last.text(), "it said nothing") }

// agentGrace is how long the agent may take to end.
const agentGrace = 3 * time.Second

func (s *Service) startAgent(program string, files agentFiles) (*agent, error) {
	// Its life is bounded by this service's, not by one step of it.
	cmd := exec.Command(program, "run", "-config", files.config) //nolint:noctx,gosec // see above; the image's own agent
	cmd.Dir, cmd.Env = files.dir, os.Environ()
	// Without the service nobody has any use for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: killSignal}
	cmd.WaitDelay = waitDelay

	a := &agent{cmd: cmd, exited: make(chan struct{}), troubles: make(chan trouble, 16)}
	out := s.linesOf(func(line string) { s.heard(a, line) })
	cmd.Stdout, cmd.Stderr = out, out
	started := make(chan error, 1)

	go func() {
		// The kernel takes the end of this thread for the end of the service (Pdeathsig).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(a.exited)

		err := cmd.Start()
		started <- err

		if err == nil {
			_ = cmd.Wait() // it has said why
			out.flush()
		}
	}()

	return a, <-started
}

// heard takes one line of an agent's log. People see what is wrong; the rest is for the
// agent's own developers.
func (s *Service) heard(a *agent, line string) {
	said := readAgentLog(line)
	if !said.loud() {
		return
	}

	a.last.add(said.text())
	s.log.Warn("spire-agent", "level", said.Level, "line", said.text())

	t, ok := said.trouble()
	if !ok {
		return
	}

	select {
	case a.troubles <- t:
	default:
	}
}

// stop ends the agent and whatever it started.
func (a *agent) stop() {
	a.once.Do(func() {
		_ = signalGroup(a.cmd, syscall.SIGTERM)

		select {
		case <-a.exited:
		case <-time.After(agentGrace):
		}

		_ = signalGroup(a.cmd, killSignal)
		<-a.exited
	})
}

// agentSaid is a line of the agent's log.
type agentSaid struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
	Error string `json:"error"`
}

func readAgentLog(line string) agentSaid {
	var out agentSaid
	if err := json.Unmarshal([]byte(line), &out); err != nil { // its configuration is refused before it has a log
		return agentSaid{Level: "error", Msg: strings.TrimSpace(line)}
	}

	return out
}

// loud says that the line is worth a place in the machine's log. What the agent answers while
// it has not heard of the machine's entry is not, nor that it narrows its own umask.
func (l agentSaid) loud() bool {
	switch l.Level {
	case "info", "debug", "trace":
		return false
	default:
		return l.Msg != "" && l.Msg != "No identity issued" && !strings.HasPrefix(l.Msg, "Current umask")
	}
}

func (l agentSaid) text() string { return strings.TrimSuffix(l.Msg+": "+l.Error, ": ") }

// trouble is why the agent has not attested.
type trouble struct {
	reason, text string
	// final says that another try of the agent changes nothing.
	final bool
}

// status is how gRPC writes the server's answer, e.g. "rpc error: code = Unavailable desc = ...".
var status = regexp.MustCompile(`rpc error: code = (\w+) desc = `)

// trouble reads what a line says of the attestation; false if nothing. The agent repeats all
// its tries for as long as it is told to, also those that the server has refused for good.
func (l agentSaid) trouble() (trouble, bool) {
	text := l.text()

	code := ""
	if found := status.FindStringSubmatch(text); found != nil {
		code = found[1]
	}

	switch {
	// The server's own answer, whatever certificate it speaks of: that of a device, for one.
	case code == "InvalidArgument", code == "PermissionDenied", code == "Unauthenticated", code == "FailedPrecondition":
		return trouble{reason: guest.ReasonAttestationRefused, text: text, final: true}, true
	case containsAny(text, "certificate has expired or is not yet valid"):
		return trouble{reason: guest.ReasonClockSkew, text: text}, true
	case containsAny(text, "certificate signed by unknown authority", "unexpected ID", "no X.509 bundle", "bundle not found"):
		return trouble{reason: guest.ReasonTrustDomainMismatch, text: text, final: true}, true
	case code != "":
		return trouble{reason: guest.ReasonAttestationTimeout, text: text}, true
	case l.Level == "error", l.Level == "fatal", l.Level == "panic":
		return trouble{reason: guest.ReasonAttestationUnavailable, text: text}, true
	default:
		return trouble{}, false
	}
}

func containsAny(text string, parts ...string) bool {
	for _, part := range parts {
		if strings.Contains(text, part) {
			return true
		}
	}

	return false
}
