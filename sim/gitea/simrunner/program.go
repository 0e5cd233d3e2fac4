// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"
)

// Exit codes of the real programs. A failed job is not a failure of the runner.
const (
	ExitSuccess = 0
	ExitError   = 1
)

// version is the version that the runner reports.
const version = "v12.9.0"

// fetchInterval is the default interval between requests for a job.
const fetchInterval = 2 * time.Second

// Program is one invocation of a runner.
type Program struct {
	Stdout io.Writer
	Stderr io.Writer
	// Dir is the folder with the settings of act_runner; default: the working directory.
	Dir string
	// Fetch is the interval between requests for a job; default 2 s.
	FetchInterval time.Duration

	writing sync.Mutex
}

// connection holds the settings of a runner.
type connection struct {
	Address   string   `json:"address"`
	UUID      string   `json:"uuid"`
	Token     string   `json:"token"`
	Name      string   `json:"name"`
	Labels    []string `json:"labels"`
	Ephemeral bool     `json:"ephemeral"`

	handle     string
	shouldWait bool
	// env holds the variables of the configuration for the environment of jobs.
	env []string
}

type list []string

// String returns the items of the list with commas.
func (l *list) String() string { return strings.Join(*l, ",") }

// Set appends the items of a value with commas.
func (l *list) Set(value string) error {
	*l = append(*l, strings.Split(value, ",")...)
	return nil
}

// Main runs "daemon" or "one-job OPTIONS" and returns the exit code. If ctx ends (SIGINT, SIGTERM),
// Main cancels a running job.
func (p *Program) Main(ctx context.Context, args []string) int {
	if p.FetchInterval <= 0 {
		p.FetchInterval = fetchInterval
	}
	conn, err := p.readConnection(args)
	if err != nil {
		_, _ = fmt.Fprintln(p.Stderr, "Error:", err)
		return ExitError
	}
	return p.run(ctx, conn)
}

func (p *Program) readConnection(args []string) (connection, error) {
	var conn connection
	if len(args) == 0 {
		return conn, errors.New("the simulated runner has only the commands daemon and one-job")
	}
	switch args[0] {
	case "daemon":
		flags, config := p.newFlags("daemon")
		if err := flags.Parse(args[1:]); err != nil {
			return conn, fmt.Errorf("parse options: %w", err)
		}
		if flags.NArg() > 0 {
			return conn, fmt.Errorf("unexpected argument %q", flags.Arg(0))
		}
		text, err := os.ReadFile(p.resolvePath(".runner"))
		if err != nil {
			p.log("error", "registration file not found, please register the runner first")
			return conn, fmt.Errorf("read registration: %w", err)
		}
		if err := json.Unmarshal(text, &conn); err != nil {
			return conn, fmt.Errorf("failed to load registration file: %w", err)
		}
		if !conn.Ephemeral {
			return conn, errors.New("the simulated runner must be ephemeral")
		}
		conn.shouldWait = true
		err = conn.configure(*config)
		return conn, err
	case "one-job":
		return p.parseOptions(args[1:])
	default:
		return conn, fmt.Errorf("unknown command %q", args[0])
	}
}

func (p *Program) resolvePath(name string) string {
	if p.Dir == "" {
		return name
	}
	return p.Dir + "/" + name
}

func (p *Program) parseOptions(args []string) (connection, error) {
	var (
		conn     connection
		labels   list
		tokenURL string
	)
	flags, config := p.newFlags("one-job")
	flags.StringVar(&conn.Address, "url", "", "URL of the server")
	flags.StringVar(&conn.UUID, "uuid", "", "UUID of the runner")
	flags.StringVar(&tokenURL, "token-url", "", "URL of the token, such as file:/etc/token")
	flags.Var(&labels, "label", "label of the runner (repeatable)")
	flags.StringVar(&conn.handle, "handle", "", "handle of the job to run")
	flags.BoolVar(&conn.shouldWait, "wait", false, "wait for a job")
	if err := flags.Parse(args); err != nil {
		return conn, fmt.Errorf("parse options: %w", err)
	}
	file, ok := strings.CutPrefix(tokenURL, "file:")
	if flags.NArg() > 0 || conn.Address == "" || conn.UUID == "" || !ok {
		return conn, errors.New("invalid configuration: `url`, `uuid` or `token-url` is empty, or an argument is unexpected")
	}
	text, err := os.ReadFile(strings.TrimPrefix(file, "//"))
	if err != nil {
		return conn, fmt.Errorf("invalid configuration: invalid `token-url`: %w", err)
	}
	conn.Token, conn.Labels = strings.TrimSpace(string(text)), labels
	err = conn.configure(*config)
	return conn, err
}

// newFlags returns the flags that both commands have.
func (p *Program) newFlags(command string) (*flag.FlagSet, *string) {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(p.Stderr)
	config := flags.String("config", "", "configuration of the runner")
	return flags, config
}

// configure reads the part of a configuration that the simulated runner supports: the variables for
// jobs, and the URL of the cache server for actions/cache (config.example.yaml of act_runner). With
// Forgejo, a cache server also needs a secret, so configure returns an error.
func (c *connection) configure(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("open config file: %w", err)
	}
	var config struct {
		Runner struct {
			Envs map[string]string `json:"envs"`
		} `json:"runner"`
		Cache struct {
			Enabled        bool   `json:"enabled"`
			ExternalServer string `json:"external_server"`
		} `json:"cache"`
	}
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		return fmt.Errorf("parse config file: %w", err)
	}
	for name, value := range config.Runner.Envs {
		c.env = append(c.env, name+"="+value)
	}
	if config.Cache.Enabled && config.Cache.ExternalServer != "" {
		if c.handle != "" {
			return errors.New("cache.external_server needs cache.secret")
		}
		c.env = append(c.env, "ACTIONS_CACHE_URL="+config.Cache.ExternalServer)
	}
	return nil
}

func (p *Program) run(ctx context.Context, conn connection) int {
	p.log("info", "Starting job")
	c := newClient(conn)
	names := make([]string, 0, len(conn.Labels))
	for _, label := range conn.Labels {
		name, schema, _ := strings.Cut(label, ":")
		if schema != "host" {
			p.log("error", "daemon Docker Engine socket not found and docker_host config was invalid")
			return ExitError
		}
		names = append(names, name)
	}
	var declared struct {
		Runner struct {
			Name   string   `json:"name"`
			Labels []string `json:"labels"`
		} `json:"runner"`
	}
	if err := c.call(ctx, "Declare", map[string]any{"version": version, "labels": names}, &declared); err != nil {
		p.log("error", "fail to invoke Declare", "error", err.Error())
		return ExitError
	}
	p.log("info", fmt.Sprintf("runner: %s, with version: %s, with labels: %v, declared successfully",
		declared.Runner.Name, version, declared.Runner.Labels))
	for {
		task, err := c.fetch(ctx)
		if err != nil && ctx.Err() == nil {
			p.log("error", "failed to fetch task", "error", err.Error())
			if isUnregistered(err) {
				return ExitError
			}
		}
		if task != nil {
			p.runTask(ctx, c, task)
			p.log("info", "single task poller is shutting down")
			return ExitSuccess
		}
		if !conn.shouldWait {
			return ExitError
		}
		select {
		case <-time.After(p.FetchInterval):
		case <-ctx.Done():
			p.log("info", "single task poller is shutting down")
			return ExitSuccess
		}
	}
}

// log prints a line in the format of the real programs.
func (p *Program) log(level, message string, fields ...string) {
	line := fmt.Appendf(nil, "time=%q level=%s msg=%q", time.Now().Format(time.RFC3339), level, message)
	for i := 0; i+1 < len(fields); i += 2 {
		line = fmt.Appendf(line, " %s=%q", fields[i], fields[i+1])
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_, _ = fmt.Fprintf(p.Stderr, "%s\n", line)
}
