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

// agentFiles holds the paths of a spire-agent's files.
type agentFiles struct {
	dir, config, socket string
}

// maxSocketPath is the maximum length of a socket's path in bytes (sun_path of unix(7)).
const maxSocketPath = 107

// writeAgentFiles writes the agent's configuration (SPIRE's doc/spire_agent.md) and the CA bundle that
// verifies the SPIRE server. The join token is in the configuration file, because other processes can
// read arguments and environment variables.
func writeAgentFiles(dir string, cfg *guest.SPIFFE, attestor string) (agentFiles, error) {
	files := agentFiles{dir: dir, config: filepath.Join(dir, "agent.conf"), socket: filepath.Join(dir, "agent.sock")}
	bundle := filepath.Join(dir, "bundle.pem")

	if len(files.socket) > maxSocketPath {
		return files, fmt.Errorf("the socket path %s is longer than %d bytes", files.socket, maxSocketPath)
	}

	host, port, err := net.SplitHostPort(cfg.ServerAddress)
	if err != nil {
		return files, fmt.Errorf("parse address of SPIRE server: %w", err)
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

	// The agent keeps its keys in memory only. The SPIRE entries of machines select a workload by the path
	// of this program. The agent determines that path only if discover_workload_path is set.
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
	// failures receives the attestation failures from the agent's log. If the channel is full, the agent's
	// next failures are dropped.
	failures   chan attestFailure
	lastOutput lastLines
	stopOnce   sync.Once
}

// lastMessages returns the last messages of the agent's log.
func (a *agent) lastMessages() string { return cmp.Or(a.lastOutput.text(), "it logged nothing") }

// agentStopTimeout is how long the agent may take to stop before it is killed.
const agentStopTimeout = 3 * time.Second

// startAgent starts spire-agent and returns when the process has started or has failed to start. It copies
// the agent's log to the service's log.
func (s *Service) startAgent(program string, files agentFiles) (*agent, error) {
	// The command has no context, because the agent must outlive the step that starts it.
	cmd := exec.Command(program, "run", "-config", files.config) //nolint:noctx,gosec // see above; the image's own agent
	cmd.Dir, cmd.Env = files.dir, os.Environ()
	setOwnGroup(cmd)
	cmd.WaitDelay = waitDelay

	a := &agent{cmd: cmd, exited: make(chan struct{}), failures: make(chan attestFailure, 16)}
	out := s.newLineWriter(func(line string) { s.handleAgentLog(a, line) })
	cmd.Stdout, cmd.Stderr = out, out
	started := make(chan error, 1)

	go func() {
		// The kernel also sends Pdeathsig when the thread that started the agent ends, so the thread must
		// live as long as the agent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(a.exited)

		err := startGroup(cmd)
		started <- err

		if err == nil {
			_ = cmd.Wait() // the agent has logged the reason
			out.flush()
		}
	}()

	return a, <-started
}

// handleAgentLog handles one line of the agent's log. It logs warnings and errors only, because the other
// lines matter only to developers of the agent.
func (s *Service) handleAgentLog(a *agent, line string) {
	entry := parseAgentLog(line)
	if !entry.shouldLog() {
		return
	}

	a.lastOutput.add(entry.text())
	s.log.Warn("spire-agent", "level", entry.Level, "line", entry.text())

	failure, ok := entry.parseFailure()
	if !ok {
		return
	}

	select {
	case a.failures <- failure:
	default:
	}
}

// stop stops the agent and all processes that it has started. Later calls do nothing.
func (a *agent) stop() {
	a.stopOnce.Do(func() {
		_ = signalGroup(a.cmd, syscall.SIGTERM)

		select {
		case <-a.exited:
		case <-time.After(agentStopTimeout):
		}

		_ = signalGroup(a.cmd, killSignal)
		<-a.exited
	})
}

// agentLogEntry is one line of the agent's log.
type agentLogEntry struct {
	Level string `json:"level"`
	Msg   string `json:"msg"`
	Error string `json:"error"`
}

func parseAgentLog(line string) agentLogEntry {
	var out agentLogEntry
	if err := json.Unmarshal([]byte(line), &out); err != nil { // the agent rejects its configuration before it logs JSON
		return agentLogEntry{Level: "error", Msg: strings.TrimSpace(line)}
	}

	return out
}

// shouldLog returns whether the entry belongs in the machine's log. These entries do not: info, debug and trace
// messages, entries without a message, "No identity issued", which the agent logs until it has received the
// machine's SPIRE entry, and the message about the agent's umask.
func (l agentLogEntry) shouldLog() bool {
	switch l.Level {
	case "info", "debug", "trace":
		return false
	default:
		return l.Msg != "" && l.Msg != "No identity issued" && !strings.HasPrefix(l.Msg, "Current umask")
	}
}

func (l agentLogEntry) text() string { return strings.TrimSuffix(l.Msg+": "+l.Error, ": ") }

// attestFailure says why the agent has not attested.
type attestFailure struct {
	reason, text string
	// isTerminal is true if a retry cannot succeed.
	isTerminal bool
}

// grpcStatus matches the server's response as gRPC formats it, e.g. "rpc error: code = Unavailable desc =
// ...".
var grpcStatus = regexp.MustCompile(`rpc error: code = (\w+) desc = `)

// parseFailure returns the attestation failure that the line describes, and false if it describes none.
// The agent retries as long as it runs, even after the server has refused the attestation permanently, so
// this function has to recognize terminal failures.
func (l agentLogEntry) parseFailure() (attestFailure, bool) {
	text := l.text()

	code := ""
	if match := grpcStatus.FindStringSubmatch(text); match != nil {
		code = match[1]
	}

	switch {
	// The server's status code comes first, because the response can mention a certificate, e.g. that of a
	// device.
	case code == "InvalidArgument", code == "PermissionDenied", code == "Unauthenticated", code == "FailedPrecondition":
		return attestFailure{reason: guest.ReasonAttestationRefused, text: text, isTerminal: true}, true
	case containsAny(text, "certificate has expired or is not yet valid"):
		return attestFailure{reason: guest.ReasonClockSkew, text: text}, true
	case containsAny(text, "certificate signed by unknown authority", "unexpected ID", "no X.509 bundle", "bundle not found"):
		return attestFailure{reason: guest.ReasonTrustDomainMismatch, text: text, isTerminal: true}, true
	case code != "":
		return attestFailure{reason: guest.ReasonAttestationTimeout, text: text}, true
	case l.Level == "error", l.Level == "fatal", l.Level == "panic":
		return attestFailure{reason: guest.ReasonAttestationUnavailable, text: text}, true
	default:
		return attestFailure{}, false
	}
}

func containsAny(text string, substrings ...string) bool {
	for _, substring := range substrings {
		if strings.Contains(text, substring) {
			return true
		}
	}

	return false
}
