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
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

const (
	// dockerMirrors is the setting in dockerConfig, the file that dockerd reads when it starts. When it is
	// asked to reload, dockerd reads this setting again
	// (https://docs.docker.com/reference/cli/dockerd/#configuration-reload-behavior).
	dockerMirrors = "registry-mirrors"
	// cacheTimeout limits the attempt to connect to a cache, because the job waits for it.
	cacheTimeout = 3 * time.Second
)

// configureCaches makes the machine use the caches of the configuration, and sets the environment of the
// runner. A cache only saves time. If a cache is unavailable, configureCaches logs a warning and returns no
// error, and the machine continues without the cache.
func (s *Service) configureCaches(ctx context.Context, c *guest.Config) error {
	s.environment = formatEnvironment(c.Environment)

	if c.Cache == nil {
		return nil
	}

	if err := s.configureRegistryMirrors(ctx, c.Cache.RegistryMirrors); err != nil {
		s.log.Warn("the registry mirrors are not used", "error", err.Error())
	}

	if c.Cache.ActionsURL == "" {
		return nil
	}

	// A runner with a cache server also sends all its requests for artifacts to that server, so jobs would
	// fail if the server is down.
	if err := checkReachable(ctx, c.Cache.ActionsURL); err != nil {
		s.log.Warn("the Actions cache is not used", "url", c.Cache.ActionsURL, "error", err.Error())

		c.Cache.ActionsURL = ""
	}

	return nil
}

var envNamePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// validateEnvironment checks the names and values of environment variables. It uses field in errors.
func validateEnvironment(field string, variables map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		switch {
		case !envNamePattern.MatchString(name):
			return fmt.Errorf("%s %q is not the name of a variable: use letters, digits and '_'", field, name)
		case strings.ContainsRune(variables[name], 0):
			return fmt.Errorf("%s %s contains a zero byte", field, name)
		}
	}

	return nil
}

// validateCaches returns an error if the address of a cache is not an http or https URL.
func validateCaches(c *guest.Cache) error {
	if c == nil {
		return nil
	}

	for _, mirror := range c.RegistryMirrors {
		if !isHTTPURL(mirror) {
			return errors.New("cache.registry_mirrors contains a value that is not an http or https URL")
		}
	}

	if c.ActionsURL != "" && !isHTTPURL(c.ActionsURL) {
		return errors.New("cache.actions_url is not an http or https URL")
	}

	return nil
}

// formatEnvironment returns the variables as NAME=VALUE, sorted by name.
func formatEnvironment(variables map[string]string) []string {
	out := make([]string, 0, len(variables))
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		out = append(out, formatVariable(name, variables[name]))
	}

	return out
}

// actionsCacheURL returns the URL of the server for actions/cache, with the trailing slash that runners
// require. It returns the empty string if the configuration has no such server.
func actionsCacheURL(c *guest.Config) string {
	if c.Cache == nil || c.Cache.ActionsURL == "" {
		return ""
	}

	return strings.TrimSuffix(c.Cache.ActionsURL, "/") + "/"
}

// checkReachable opens a TCP connection to the server of a URL and closes it.
func checkReachable(ctx context.Context, baseURL string) error {
	server, err := url.Parse(baseURL)
	if err != nil {
		return fmt.Errorf("parse URL: %w", err)
	}

	defaultPort := map[string]string{"http": "80", "https": "443"}[server.Scheme]
	dialer := net.Dialer{Timeout: cacheTimeout}

	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), defaultPort)))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}

	_ = conn.Close()

	return nil
}

// configureRegistryMirrors adds the mirrors to Docker's configuration, before the mirrors that the image has
// configured. If Docker runs, it asks Docker to reload its configuration.
func (s *Service) configureRegistryMirrors(ctx context.Context, mirrors []string) error {
	if len(mirrors) == 0 {
		return nil
	}

	path := s.path(dockerConfig)

	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read Docker's configuration: %w", err)
	}

	if text, err = addMirrors(text, mirrors); err != nil {
		return fmt.Errorf("read Docker's configuration %s: %w", path, err)
	}

	//nolint:gosec // the modes that Docker's packages use; the file holds no secrets
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		return fmt.Errorf("write Docker's configuration: %w", err)
	}

	if err := s.reloadDocker(ctx); err != nil {
		return fmt.Errorf("ask Docker to reload its configuration: %w", err)
	}

	return nil
}

// addMirrors puts the mirrors first in the registry-mirrors of a Docker configuration, without duplicates. It
// keeps all other settings.
func addMirrors(text []byte, mirrors []string) ([]byte, error) {
	settings := map[string]json.RawMessage{}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // Windows PowerShell writes it, and Docker ignores it

	if len(bytes.TrimSpace(text)) > 0 {
		if err := json.Unmarshal(text, &settings); err != nil {
			return nil, errors.New("not valid JSON")
		}
	}

	var existing []string
	if raw, ok := settings[dockerMirrors]; ok && json.Unmarshal(raw, &existing) != nil {
		return nil, errors.New(dockerMirrors + " is not a list of strings")
	}

	merged := slices.Clone(mirrors)

	for _, mirror := range existing {
		if !slices.Contains(merged, mirror) {
			merged = append(merged, mirror)
		}
	}

	raw, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}

	settings[dockerMirrors] = raw

	return json.MarshalIndent(settings, "", "  ")
}
