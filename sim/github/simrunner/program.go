// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// Exit codes of the real runner's listener.
const (
	ExitSuccess         = 0
	ExitTerminated      = 1
	ExitRetryable       = 2
	ExitSessionConflict = 5
)

// Version is the version that the runner reports.
const Version = "2.330.0"

// Program is one invocation of the runner.
type Program struct {
	Root   string // installation folder, which holds .runner, .credentials and the work folder
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string // default: os.Getenv
	Delay  time.Duration       // between attempts while the server is unreachable; default 1 s
	Clock  clock.WithTicker    // default: the real clock
}

// Main runs "config ARGS", "config remove ARGS" or "run ARGS" and returns the exit code. If ctx
// ends (a signal), Main closes the session before it returns.
func (p *Program) Main(ctx context.Context, args []string) int {
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	if p.Delay <= 0 {
		p.Delay = time.Second
	}
	if p.Clock == nil {
		p.Clock = clock.RealClock{}
	}
	if len(args) == 0 {
		p.warnln("usage: config|run [options]")
		return ExitTerminated
	}
	var err error
	switch {
	case args[0] == "run":
		return p.run(ctx, args[1:])
	case args[0] == "config" && len(args) > 1 && args[1] == "remove":
		err = p.remove(ctx, args[2:])
	case args[0] == "config":
		err = p.configure(ctx, args[1:])
	default:
		err = fmt.Errorf("unrecognized command-line input %q", args[0])
	}
	if err != nil {
		p.warnln(err)
		return ExitTerminated
	}
	return ExitSuccess
}

func (p *Program) println(text string) { p.printf("%s\n", text) }

func (p *Program) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.Stdout, format, args...) }

func (p *Program) warnln(args ...any) { _, _ = fmt.Fprintln(p.Stderr, args...) }

// readInput returns the default of a flag, as the real runner does: the variable
// ACTIONS_RUNNER_INPUT_NAME.
func (p *Program) readInput(name string) string {
	return p.Getenv("ACTIONS_RUNNER_INPUT_" + strings.ToUpper(name))
}

func (p *Program) configure(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("config", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	req := protocol.RegisterRequest{}
	flags.StringVar(&req.URL, "url", p.readInput("url"), "URL of the repository, organisation or enterprise to register at")
	token := flags.String("token", p.readInput("token"), "registration token")
	flags.StringVar(&req.Name, "name", p.readInput("name"), "name of the runner (default: the host's name)")
	labels := flags.String("labels", p.readInput("labels"), "extra labels, comma separated")
	flags.StringVar(&req.Group, "runnergroup", p.readInput("runnergroup"), "runner group")
	flags.StringVar(&req.WorkFolder, "work", p.readInput("work"), "work folder")
	flags.BoolVar(&req.Ephemeral, "ephemeral", false, "run one job, then deregister")
	flags.BoolVar(&req.Replace, "replace", false, "replace a runner of the same name")
	flags.BoolVar(&req.DisableUpdate, "disableupdate", false, "disable self-update")
	flags.BoolVar(&req.NoDefaultLabels, "no-default-labels", false, "do not add the labels self-hosted, Linux and X64")
	flags.Bool("unattended", false, "do not prompt")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("parse options: %w", err)
	}
	if _, err := os.Stat(filepath.Join(p.Root, protocol.FileRunner)); err == nil {
		return errors.New("cannot configure the runner because it is already configured; run './config.sh remove' first")
	}
	base, err := serverURL(req.URL)
	if err != nil || *token == "" {
		return errors.Join(err, errors.New("config needs --url and --token"))
	}
	if req.Name == "" {
		req.Name, _ = os.Hostname()
	}
	req.Labels = strings.Split(*labels, ",")
	c := newClient(base, p.Delay, p.Clock)
	c.auth = "RemoteAuth " + *token
	var reply protocol.RegisterResponse
	if err := c.retry(ctx, 3, func() error {
		_, err := c.call(ctx, callTimeout, http.MethodPost, protocol.PathRegister, req, &reply)
		return err
	}); err != nil {
		return fmt.Errorf("register runner %q: %w", req.Name, err)
	}
	p.println("√ Connected to GitHub\n\n# Runner Registration\n\n√ Runner successfully added")
	config, err := protocol.DecodeJIT(reply.EncodedConfig)
	if err != nil {
		return fmt.Errorf("decode registration: %w", err)
	}
	if err := p.save(config); err != nil {
		return err
	}
	p.println("√ Runner connection is good\n\n# Runner settings\n\n√ Settings Saved.")
	return nil
}

func (p *Program) remove(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("remove", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	token := flags.String("token", p.readInput("token"), "removal token")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("parse options: %w", err)
	}
	config, err := p.load()
	if err != nil {
		return err
	}
	c := newClient(config.Runner.ServerURL, p.Delay, p.Clock)
	c.auth = "RemoteAuth " + *token
	if _, err := c.call(ctx, callTimeout, http.MethodPost, protocol.PathRemove,
		protocol.RemoveRequest{URL: config.Runner.GitHubURL, AgentID: config.Runner.AgentID}, nil); err != nil {
		return fmt.Errorf("remove runner %q: %w", config.Runner.AgentName, err)
	}
	p.println("√ Runner removed successfully")
	p.removeSettings()
	return nil
}

func serverURL(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errors.New("--url must be an http or https URL")
	}
	return u.Scheme + "://" + u.Host, nil
}

func (p *Program) save(config protocol.Config) error {
	files, err := config.EncodeFiles()
	if err != nil {
		return fmt.Errorf("save settings: %w", err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.Root, name), text, 0o600); err != nil {
			return fmt.Errorf("save settings: %w", err)
		}
	}
	return nil
}

func (p *Program) load() (protocol.Config, error) {
	files := map[string][]byte{}
	for _, name := range []string{protocol.FileRunner, protocol.FileCredentials, protocol.FileRSAParams} {
		text, err := os.ReadFile(filepath.Join(p.Root, name))
		if err != nil {
			return protocol.Config{}, errors.New("not configured: run config.sh to configure the runner")
		}
		files[name] = text
	}
	config, err := protocol.ParseFiles(files)
	if err != nil {
		return protocol.Config{}, fmt.Errorf("load settings: %w", err)
	}
	return config, nil
}

// removeSettings removes the settings, as the real runner does after an ephemeral job.
func (p *Program) removeSettings() {
	for _, name := range []string{protocol.FileRunner, protocol.FileCredentials, protocol.FileRSAParams} {
		_ = os.Remove(filepath.Join(p.Root, name))
	}
}
