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

// version the runner claims to be.
const version = "2.330.0"

// Program is one invocation.
type Program struct {
	Root   string // install folder: holds .runner, .credentials and the work folder
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string // default: os.Getenv
	Delay  time.Duration       // between attempts when the server cannot be reached; default 1 s
	Clock  clock.WithTicker    // default: the real clock
}

// Main runs "config ARGS", "config remove ARGS" or "run ARGS" and returns the
// exit code. When ctx ends (a signal) the session is closed before it returns.
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

// input reads a flag's fallback as the real runner does: ACTIONS_RUNNER_INPUT_NAME.
func (p *Program) input(name string) string {
	return p.Getenv("ACTIONS_RUNNER_INPUT_" + strings.ToUpper(name))
}

func (p *Program) configure(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("config", flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	req := protocol.RegisterRequest{}
	flags.StringVar(&req.URL, "url", p.input("url"), "repository, organisation or enterprise to register at")
	token := flags.String("token", p.input("token"), "registration token")
	flags.StringVar(&req.Name, "name", p.input("name"), "name of the runner (default: the host's name)")
	labels := flags.String("labels", p.input("labels"), "extra labels, comma separated")
	flags.StringVar(&req.Group, "runnergroup", p.input("runnergroup"), "runner group")
	flags.StringVar(&req.WorkFolder, "work", p.input("work"), "work folder")
	flags.BoolVar(&req.Ephemeral, "ephemeral", false, "take one job, then deregister")
	flags.BoolVar(&req.Replace, "replace", false, "replace a runner of the same name")
	flags.BoolVar(&req.DisableUpdate, "disableupdate", false, "no self-update")
	flags.BoolVar(&req.NoDefaultLabels, "no-default-labels", false, "without self-hosted, Linux, X64")
	flags.Bool("unattended", false, "ask nothing")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("parse options: %w", err)
	}
	if _, err := os.Stat(filepath.Join(p.Root, protocol.FileRunner)); err == nil {
		return errors.New("cannot configure the runner because it is already configured; run './config.sh remove' first")
	}
	base, err := serverOf(req.URL)
	if err != nil || *token == "" {
		return errors.Join(err, errors.New("config needs --url and --token"))
	}
	if req.Name == "" {
		req.Name, _ = os.Hostname()
	}
	req.Labels = strings.Split(*labels, ",")
	c := newClient(base, p.Delay, p.Clock)
	c.auth = "RemoteAuth " + *token
	var reply protocol.RegisterReply
	if err := c.retry(ctx, 3, func() error {
		_, err := c.call(ctx, callTimeout, http.MethodPost, protocol.PathRegister, req, &reply)
		return err
	}); err != nil {
		return fmt.Errorf("register runner %q: %w", req.Name, err)
	}
	p.println("√ Connected to GitHub\n\n# Runner Registration\n\n√ Runner successfully added")
	config, err := protocol.DecodeJIT(reply.EncodedConfig)
	if err != nil {
		return fmt.Errorf("read the registration: %w", err)
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
	token := flags.String("token", p.input("token"), "removal token")
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
	p.forget()
	return nil
}

func serverOf(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errors.New("--url is not an http or https address")
	}
	return u.Scheme + "://" + u.Host, nil
}

func (p *Program) save(config protocol.Config) error {
	files, err := config.Files()
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

// forget removes the settings, as the real runner does after an ephemeral job.
func (p *Program) forget() {
	for _, name := range []string{protocol.FileRunner, protocol.FileCredentials, protocol.FileRSAParams} {
		_ = os.Remove(filepath.Join(p.Root, name))
	}
}
