// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

const (
	// dockerConfig is read by dockerd when it starts, and its registry-mirrors again at a
	// SIGHUP (https://docs.docker.com/reference/cli/dockerd/#configuration-reload-behavior).
	dockerConfig  = "/etc/docker/daemon.json"
	dockerPID     = "/run/docker.pid"
	dockerMirrors = "registry-mirrors"
	// cacheTimeout is how long a cache may take to be reached: a job waits for it.
	cacheTimeout = 3 * time.Second
)

// useCaches has the machine use the configuration's caches. A cache saves time and nothing
// hangs on it: what can't be had is told in the log, and the machine goes on without.
func (s *Service) useCaches(ctx context.Context, c *guest.Config) error {
	s.environment = environment(c.Environment)

	if c.Cache == nil {
		return nil
	}

	if err := s.mirrorRegistry(c.Cache.RegistryMirrors); err != nil {
		s.log.Warn("the registry mirrors are not used", "error", err.Error())
	}

	if c.Cache.ActionsURL == "" {
		return nil
	}

	// A runner that is told of a cache server sends it all calls for artifacts too: a server
	// that is down would fail jobs.
	if err := reach(ctx, c.Cache.ActionsURL); err != nil {
		s.log.Warn("the Actions cache is not used", "url", c.Cache.ActionsURL, "error", err.Error())

		c.Cache.ActionsURL = ""
	}

	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// validateEnvironment refuses what is no environment.
func validateEnvironment(field string, of map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		switch {
		case !envName.MatchString(name):
			return fmt.Errorf("%s %q is no name of a variable: use letters, digits and '_'", field, name)
		case strings.ContainsRune(of[name], 0):
			return fmt.Errorf("%s %s holds a zero byte", field, name)
		}
	}

	return nil
}

// validateCaches refuses what is no address of a cache.
func validateCaches(c *guest.Cache) error {
	if c == nil {
		return nil
	}

	for _, mirror := range c.RegistryMirrors {
		if !isHTTP(mirror) {
			return errors.New("cache.registry_mirrors holds something that is not an http or https URL")
		}
	}

	if c.ActionsURL != "" && !isHTTP(c.ActionsURL) {
		return errors.New("cache.actions_url is not an http or https URL")
	}

	return nil
}

// environment gives settings in order.
func environment(of map[string]string) []string {
	out := make([]string, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, setting(name, of[name]))
	}

	return out
}

// actionsCache is the server for actions/cache, with the slash at its end that runners want
// to find there; "" where there is none.
func actionsCache(c *guest.Config) string {
	if c.Cache == nil || c.Cache.ActionsURL == "" {
		return ""
	}

	return strings.TrimSuffix(c.Cache.ActionsURL, "/") + "/"
}

// reach opens a connection to a server and closes it.
func reach(ctx context.Context, base string) error {
	at, err := url.Parse(base)
	if err != nil {
		return fmt.Errorf("read URL: %w", err)
	}

	port := map[string]string{"http": "80", "https": "443"}[at.Scheme]
	dialer := net.Dialer{Timeout: cacheTimeout}

	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), port)))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}

	_ = conn.Close()

	return nil
}

// mirrorRegistry puts mirrors before those that the image has, and has a Docker that runs
// take them over.
func (s *Service) mirrorRegistry(mirrors []string) error {
	if len(mirrors) == 0 {
		return nil
	}

	path := s.path(dockerConfig)

	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read Docker's configuration: %w", err)
	}

	if text, err = withMirrors(text, mirrors); err != nil {
		return fmt.Errorf("read Docker's configuration %s: %w", dockerConfig, err)
	}

	//nolint:gosec // as Docker's packages have them: nothing of it is secret
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		return fmt.Errorf("write Docker's configuration: %w", err)
	}

	pid, err := os.ReadFile(s.path(dockerPID))
	if err != nil {
		return nil //nolint:nilerr // Docker does not run yet, and reads the file when it starts
	}

	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil || number <= 1 {
		return fmt.Errorf("read %s: %q is no process", dockerPID, bytes.TrimSpace(pid))
	}

	if err := syscall.Kill(number, syscall.SIGHUP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("have Docker read its configuration again: %w", err)
	}

	return nil
}

// withMirrors adds mirrors to a configuration of Docker; all else in it stays.
func withMirrors(text []byte, mirrors []string) ([]byte, error) {
	settings := map[string]json.RawMessage{}

	if len(bytes.TrimSpace(text)) > 0 {
		if err := json.Unmarshal(text, &settings); err != nil {
			return nil, errors.New("it is not valid JSON")
		}
	}

	var had []string
	if raw, ok := settings[dockerMirrors]; ok && json.Unmarshal(raw, &had) != nil {
		return nil, errors.New(dockerMirrors + " is not a list of texts")
	}

	all := slices.Clone(mirrors)

	for _, mirror := range had {
		if !slices.Contains(all, mirror) {
			all = append(all, mirror)
		}
	}

	raw, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}

	settings[dockerMirrors] = raw

	return json.MarshalIndent(settings, "", "  ")
}
