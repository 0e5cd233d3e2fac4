// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// MaxConfigBytes is the maximum size of a configuration.
const MaxConfigBytes = 256 << 10

// Defaults of document 000 for fields that the configuration does not set.
const (
	defaultInstallPath  = "/opt/actions-runner"
	defaultWorkDir      = "/tmp/runner-work"
	defaultConfigScript = "config.sh"
	defaultRunScript    = "run.sh"
)

// ParseConfig parses and validates a configuration, and sets defaults. It returns an error for unknown
// fields, for text after the JSON object, and for invalid values. Errors name fields and never contain a
// credential.
func ParseConfig(data []byte) (*guest.Config, error) {
	if len(data) > MaxConfigBytes {
		return nil, fmt.Errorf("the file has more than %d bytes", MaxConfigBytes)
	}

	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("the file is empty")
	}

	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()

	var c guest.Config
	if err := dec.Decode(&c); err != nil {
		return nil, describeJSONError(err)
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text follows the end of the JSON object")
	}

	setDefaults(&c)

	return &c, validate(&c)
}

// describeJSONError returns an error that describes err without values, because these can be credentials.
func describeJSONError(err error) error {
	var (
		syntax *json.SyntaxError
		typed  *json.UnmarshalTypeError
	)

	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &typed):
		return fmt.Errorf("field %q has the wrong type: it must be a %s", typed.Field, typed.Type)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("not valid JSON: the text ends too early")
	default: // errors of times and durations quote the value
		return errors.New("a time or duration is not valid: write expires_at as 2006-01-02T15:04:05Z and timeouts as 30m0s")
	}
}

func setDefaults(c *guest.Config) {
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.Runner.InstallPath, defaultInstallPath},
		{&c.Runner.WorkDir, defaultWorkDir},
		{&c.Runner.ConfigScript, defaultConfigScript},
		{&c.Runner.RunScript, defaultRunScript},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}

	c.Runner.Program = nativeProgram(c.Runner.Program)
	c.Runner.ConfigScript, c.Runner.RunScript = nativeScript(c.Runner.ConfigScript), nativeScript(c.Runner.RunScript)

	setIdentityDefaults(c)
}

var sha256Pattern = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// validate returns an error for the first invalid field. For methods that include the credential, it also
// sets the platform's defaults.
func validate(c *guest.Config) error {
	switch {
	case c.Method == "":
		return errors.New("method is missing")
	case !slices.Contains(supportedMethods(), c.Method):
		return fmt.Errorf("this bootstrap service does not support method %q: use %s",
			c.Method, strings.Join(supportedMethods(), ", "))
	case c.Platform == "":
		return errors.New("platform is missing")
	case platformFor(c.Platform) == nil:
		return fmt.Errorf("this bootstrap service does not support platform %q: use %s",
			c.Platform, strings.Join(platformNames(), ", "))
	case c.RunnerName == "":
		return errors.New("runner_name is missing")
	case c.IdleTimeout < 0, c.JobTimeout < 0:
		return errors.New("idle_timeout and job_timeout must not be negative")
	}

	for name, value := range map[string]string{"registration_url": c.RegistrationURL, "runner.download_url": c.Runner.DownloadURL} {
		if value != "" && !isHTTPURL(value) {
			return fmt.Errorf("%s is not an http or https URL", name)
		}
	}

	if err := errors.Join(validateEnvironment("environment", c.Environment), validateCaches(c.Cache)); err != nil {
		return err
	}

	if err := validatePaths(&c.Runner); err != nil {
		return err
	}

	if err := validateSPIFFE(c.SPIFFE); err != nil {
		return err
	}

	if err := validateMethod(c); err != nil {
		return err
	}

	return validateReport(c.Report)
}

func supportedMethods() []string {
	return []string{guest.MethodRunnerToken, guest.MethodCallback, guest.MethodExternalSecrets}
}

// validateMethod checks the fields that the method requires. If the credential is fetched later,
// useCredential checks the fields that the platform requires.
func validateMethod(c *guest.Config) error {
	if c.Callback != nil && c.Method != guest.MethodCallback {
		return fmt.Errorf("callback is not used by method %s: remove it", c.Method)
	}

	if c.Secrets != nil && c.Method != guest.MethodExternalSecrets {
		return fmt.Errorf("secrets is not used by method %s: remove it", c.Method)
	}

	switch c.Method {
	case guest.MethodCallback:
		return validateCallback(c)
	case guest.MethodExternalSecrets:
		return validateSecrets(c)
	default:
		return platformFor(c.Platform).validate(c)
	}
}

func validateCallback(c *guest.Config) error {
	callback := c.Callback
	if callback == nil {
		return fmt.Errorf("callback is missing: method %s requires it", c.Method)
	}

	switch {
	case callback.Code == "" && callback.Audience == "":
		return errors.New("callback.code is missing")
	case callback.Code != "" && callback.Audience != "":
		return errors.New("callback.code and callback.audience exclude each other: remove one of them")
	case callback.Audience != "" && !isAttestationEnabled(c):
		return errors.New("callback.audience requires an identity: enable spiffe")
	}

	if err := rejectCredential(c, c.Credential()); err != nil {
		return err
	}

	return validateEndpoint("callback.url", callback.URL)
}

// rejectCredential returns an error if a configuration that fetches the credential also contains one.
func rejectCredential(c *guest.Config, credential guest.Credential) error {
	if reflect.DeepEqual(credential, guest.Credential{}) {
		return nil
	}

	return fmt.Errorf("a credential is not used by method %s: remove jit_config, runner_token, registration_url, "+
		"expires_at, job_id and env", c.Method)
}

// rejectUnusedFields returns an error for the first of the fields that is set, because the platform does not
// use it. A configuration with such a field was probably written for another platform.
func rejectUnusedFields(c *guest.Config, fields ...string) error {
	set := map[string]bool{
		"jit_config": c.JITConfig != "", "runner_token": c.RunnerToken != "", "registration_url": c.RegistrationURL != "",
		"job_id": c.JobID != "", "command": len(c.Command) > 0, "env": len(c.Env) > 0,
		"runner.download_url": c.Runner.DownloadURL != "", "runner.program": c.Runner.Program != "",
	}

	for _, field := range fields {
		if set[field] {
			return fmt.Errorf("%s is not used by platform %s: remove it", field, c.Platform)
		}
	}

	return nil
}

func validatePaths(r *guest.Runner) error {
	if r.DownloadSHA256 != "" && !sha256Pattern.MatchString(r.DownloadSHA256) {
		return errors.New("runner.download_sha256 must be 64 hexadecimal digits")
	}

	for name, p := range map[string]string{
		"runner.install_path": r.InstallPath, "runner.work_dir": r.WorkDir, "runner.program": r.Program,
	} {
		if name == "runner.program" && p == "" {
			continue
		}

		if !isAbsolute(p) || IsRoot(p) || strings.ContainsRune(p, 0) {
			return fmt.Errorf("%s %q must be an absolute path below /", name, p)
		}
	}

	for name, p := range map[string]string{"runner.config_script": r.ConfigScript, "runner.run_script": r.RunScript} {
		if !filepath.IsLocal(p) || strings.ContainsRune(p, 0) {
			return fmt.Errorf("%s %q must be a path in runner.install_path", name, p)
		}
	}

	return nil
}

// validateReport checks the endpoint of the reports.
func validateReport(r *guest.ReportTo) error {
	if r == nil {
		return nil
	}

	if err := validateEndpoint("report.url", r.URL); err != nil {
		return err
	}

	if r.Token == "" {
		return errors.New("report.token is missing")
	}

	return nil
}

// validateEndpoint requires https, except for loopback addresses, so that tokens and codes are always
// encrypted on the network.
func validateEndpoint(field, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%s is not a URL", field)
	}

	isLoopback := u.Hostname() == "localhost"
	if ip := net.ParseIP(u.Hostname()); ip != nil {
		isLoopback = ip.IsLoopback()
	}

	if u.Scheme != "https" && (u.Scheme != "http" || !isLoopback) {
		return fmt.Errorf("%s must begin with https://", field)
	}

	return nil
}

func isHTTPURL(text string) bool {
	u, err := url.Parse(text)

	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// readAndDeleteConfig reads, deletes and parses the configuration file. It deletes the file because it
// contains a credential, even if the configuration is invalid.
func readAndDeleteConfig(file string) (*guest.Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open runner configuration: %w", err)
	}

	data, err := io.ReadAll(io.LimitReader(f, MaxConfigBytes+1))
	_ = f.Close()

	if rmErr := os.Remove(file); rmErr != nil {
		return nil, fmt.Errorf("delete runner configuration after reading it: %w", rmErr)
	}

	if err != nil {
		return nil, fmt.Errorf("read runner configuration: %w", err)
	}

	c, err := ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("parse runner configuration %s: %w", file, err)
	}

	return c, nil
}
