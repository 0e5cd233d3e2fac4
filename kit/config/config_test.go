// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/kit/config"
)

type settings struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	OwnerUID   string            `json:"ownerUID"`
	Log        logging           `json:"log"`
	Leader     leader            `json:"leaderElection"`
	Areas      []string          `json:"areas"`
	Binaries   map[string]string `json:"binaries"`
	TokenFile  config.SecretFile `json:"tokenFile"`
}

type logging struct {
	Level string `json:"level"`
}

type leader struct {
	Enabled     bool          `json:"enabled"`
	RetryPeriod time.Duration `json:"retryPeriod"`
	Replicas    int           `json:"replicas"`
	Small       int32         `json:"small"`
	MaxBytes    int64         `json:"maxBytes"`
	Share       float64       `json:"share"`
}

func spec(environ ...string) *config.Spec[settings] {
	return &config.Spec[settings]{
		APIVersion: "config.test/v1", Kind: "Settings",
		Default: settings{
			APIVersion: "config.test/v1", Kind: "Settings",
			Log: logging{Level: "INFO"}, Areas: []string{"runners"}, Binaries: map[string]string{"x64": "/x"},
			Leader: leader{Enabled: true, RetryPeriod: 2 * time.Second, Replicas: 1, Share: .5},
		},
		Aliases:  map[string]string{"LOG_LEVEL": "log.level"},
		OtherEnv: []string{"HYPERFLEET_DEMO_DIR"},
		Help:     map[string]string{"log.level": "least level that is logged"},
		Environ:  func() []string { return environ },
	}
}

const head = "apiVersion: config.test/v1\nkind: Settings\n"

// load loads with the file's text, where there is one, and the arguments.
func load(t *testing.T, s *config.Spec[settings], file string, args ...string) (*config.Loaded[settings], error) {
	t.Helper()

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	if err := s.AddFlags(flags); err != nil {
		t.Fatal(err)
	}

	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}

		args = append(args, "--config", path)
	}

	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	return s.Load(flags)
}

func TestEachPlaceGoesOverTheOneBefore(t *testing.T) {
	t.Parallel()

	got, err := load(t, spec(
		"HYPERFLEET_LEADER_ELECTION_RETRY_PERIOD=4s", "HYPERFLEET_OWNER_UID=env", "HYPERFLEET_BINARIES=arm64=/a, x64=/b",
		"HYPERFLEET_DEMO_DIR=/tmp", "PATH=/bin", "HYPERFLEET_LEADER_ELECTION_SMALL=-5",
	), head+`
log: {level: DEBUG}
ownerUID: file
areas: [hosts, bridge]
leaderElection: {enabled: false, replicas: 3, maxBytes: 5000000000, share: 1}
tokenFile: /run/token
binaries:
`, "--owner-uid=flag", "--leader-election-enabled", "--areas", "a,b", "--areas", "c")
	if err != nil {
		t.Fatal(err)
	}

	want := settings{
		APIVersion: "config.test/v1", Kind: "Settings", OwnerUID: "flag", Log: logging{Level: "DEBUG"},
		Areas: []string{"a", "b", "c"}, Binaries: map[string]string{"arm64": "/a", "x64": "/b"}, TokenFile: "/run/token",
		Leader: leader{Enabled: true, RetryPeriod: 4 * time.Second, Replicas: 3, Small: -5, MaxBytes: 5000000000, Share: 1},
	}
	if diff := cmp.Diff(want, got.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}

	if got.Sources["ownerUID"] != "flag --owner-uid" || got.Sources["binaries"] != "env HYPERFLEET_BINARIES" ||
		!strings.HasPrefix(got.Sources["log.level"], "file ") {
		t.Errorf("sources = %v", got.Sources)
	}
}

func TestDefaultsStandAlone(t *testing.T) {
	t.Parallel()

	s := spec()

	got, err := s.Load(nil)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(s.Default, got.Config); diff != "" || len(got.Sources) != 0 {
		t.Errorf("configuration (-want +got):\n%s\nsources %v", diff, got.Sources)
	}
}

func TestAliasesAndTheFileVariable(t *testing.T) {
	t.Parallel()

	got, err := spec("LOG_LEVEL=WARN").Load(nil)
	if err != nil || got.Config.Log.Level != "WARN" || got.Sources["log.level"] != "env LOG_LEVEL" {
		t.Errorf("alias: %+v, %v", got, err)
	}

	got, err = spec("LOG_LEVEL=WARN", "HYPERFLEET_LOG_LEVEL=ERROR").Load(nil)
	if err != nil || got.Config.Log.Level != "ERROR" {
		t.Errorf("alias and variable: %+v, %v", got, err)
	}

	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(head+"ownerUID: x"), 0o600); err != nil {
		t.Fatal(err)
	}

	got, err = spec("HYPERFLEET_CONFIG=" + path).Load(nil)
	if err != nil || got.Config.OwnerUID != "x" {
		t.Errorf("file variable: %+v, %v", got, err)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		file    string
		environ []string
		args    []string
		want    []string
	}{
		"unknown key, nearest named": {
			file: head + "log: {leve: DEBUG}", want: []string{"unknown key log.leve, did you mean log.level?"},
		},
		"unknown key, nothing near": {file: head + "telemetry: 1", want: []string{"unknown key telemetry"}},
		"key in another case":       {file: head + "OwnerUid: x", want: []string{"unknown key OwnerUid, did you mean ownerUID?"}},
		"unknown variable": {
			environ: []string{"HYPERFLEET_LOG_LEVE=x"},
			want:    []string{"unknown variable HYPERFLEET_LOG_LEVE, did you mean HYPERFLEET_LOG_LEVEL?"},
		},
		"unknown flag":              {args: []string{"--nope"}, want: []string{"unknown flag: --nope"}},
		"no apiVersion and no kind": {file: "ownerUID: x", want: []string{"apiVersion is missing: want config.test/v1", "kind is missing"}},
		"another version": {
			file: "apiVersion: config.test/v2\nkind: Settings", want: []string{"apiVersion is config.test/v2: want config.test/v1"},
		},
		"a duration without a unit": {
			file: head + "leaderElection: {retryPeriod: 30}", want: []string{"leaderElection.retryPeriod: 30: want a duration such as 30s"},
		},
		"a number for a text":    {file: head + "ownerUID: 12", want: []string{"ownerUID: 12: want a text (numbers in quotes)"}},
		"a text for a list":      {file: head + "areas: runners", want: []string{"areas: runners: want a list of texts"}},
		"a list for a map":       {file: head + "binaries: [a]", want: []string{"binaries: [a]: want a map of texts"}},
		"a fraction for a whole": {file: head + "leaderElection: {replicas: 1.5}", want: []string{"leaderElection.replicas: 1.5: want a whole number"}},
		"a number too large":     {file: head + "leaderElection: {small: 3000000000}", want: []string{"leaderElection.small: 3000000000"}},
		"a value for a group":    {file: head + "log: DEBUG", want: []string{"log: DEBUG: want keys below it"}},
		"a bad variable": {
			environ: []string{"HYPERFLEET_LEADER_ELECTION_ENABLED=maybe"},
			want:    []string{`variable HYPERFLEET_LEADER_ELECTION_ENABLED: "maybe": want true or false`},
		},
		"a bad map":         {environ: []string{"HYPERFLEET_BINARIES=x64"}, want: []string{`"x64": want a map of texts`}},
		"a bad flag":        {args: []string{"--leader-election-retry-period=soon"}, want: []string{`"soon": want a duration`}},
		"not YAML":          {file: "a: [", want: []string{"parse YAML"}},
		"a key given twice": {file: head + "ownerUID: a\nownerUID: b", want: []string{"already defined"}},
		"two documents":     {file: head + "---\n" + head, want: []string{"more than one YAML document"}},
		"not a map":         {file: "- a", want: []string{"parse YAML"}},
		"too large":         {file: head + "#" + strings.Repeat("x", 1<<20), want: []string{"larger than 1048576 bytes"}},
		"no such file":      {args: []string{"--config=/no/such.yaml"}, want: []string{"file /no/such.yaml: open: no such file"}},
		"all at once": {
			file: head + "areas: x\nlgo: {}", environ: []string{"HYPERFLEET_AREA=1"},
			want: []string{"areas: x: want", "unknown key lgo, did you mean log?", "HYPERFLEET_AREA, did you mean HYPERFLEET_AREAS?"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := load(t, spec(tc.environ...), tc.file, tc.args...)
			if err == nil {
				t.Fatal("no error")
			}

			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		})
	}
}

func TestServiceLinksOfKubernetesAreNotOurs(t *testing.T) {
	t.Parallel()

	_, err := spec(
		"HYPERFLEET_WEBHOOKS_SERVICE_HOST=10.0.0.1", "HYPERFLEET_WEBHOOKS_SERVICE_PORT=443",
		"HYPERFLEET_WEBHOOKS_SERVICE_PORT_HTTPS=443", "HYPERFLEET_WEBHOOKS_PORT=tcp://10.0.0.1:443",
		"HYPERFLEET_WEBHOOKS_PORT_443_TCP=tcp://10.0.0.1:443", "HYPERFLEET_WEBHOOKS_PORT_443_TCP_ADDR=10.0.0.1",
	).Load(nil)
	if err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()

	s := spec()
	s.Validate = func(c settings) error {
		return config.ErrorAt("log.level", "%q is not a level", c.Log.Level)
	}

	_, err := load(t, s, head+"log: {level: LOUD}")
	if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), `log.level: "LOUD" is not a level`) {
		t.Errorf("err = %v", err)
	}
}

func TestTypesThatAreNoConfiguration(t *testing.T) {
	t.Parallel()

	type nameless struct{ A string }

	type clash struct {
		A struct {
			B string `json:"b"`
		} `json:"a"`
		AB string `json:"aB"`
	}

	type channel struct {
		C chan int `json:"c"`
	}

	for name, load := range map[string]func() error{
		"no name":    func() error { _, err := (&config.Spec[nameless]{}).Load(nil); return err },
		"same name":  func() error { _, err := (&config.Spec[clash]{}).Load(nil); return err },
		"no such":    func() error { _, err := (&config.Spec[channel]{}).Load(nil); return err },
		"not struct": func() error { _, err := (&config.Spec[int]{}).Load(nil); return err },
	} {
		if load() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSecretFiles(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	write("first\n")

	file := config.SecretFile(path)
	if got, err := file.Read(); err != nil || got.Reveal() != "first" {
		t.Errorf("Read() = %q, %v", got.Reveal(), err)
	}

	write("second")

	if got, err := file.Read(); err != nil || got.Reveal() != "second" {
		t.Errorf("after rotation Read() = %q, %v", got.Reveal(), err)
	}

	write(" \n")

	if _, err := file.Read(); !errors.Is(err, config.ErrBadSecret) {
		t.Errorf("empty: %v", err)
	}

	write(strings.Repeat("x", 70000))

	if _, err := file.Read(); !errors.Is(err, config.ErrBadSecret) || strings.Contains(err.Error(), "xx") {
		t.Errorf("large: %v", err)
	}

	if _, err := config.SecretFile("").Read(); !errors.Is(err, config.ErrNoSecret) {
		t.Errorf("unset: %v", err)
	}

	if _, err := config.SecretFile(path + "x").Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

// run runs the config command and returns what it prints.
func run(t *testing.T, s *config.Spec[settings], args ...string) (string, error) {
	t.Helper()

	cmd, err := s.Command()
	if err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer

	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage = true
	err = cmd.Execute()

	return out.String(), err
}

func TestCommands(t *testing.T) {
	t.Parallel()

	const secretURL = "nats://fleet:hunter2@broker:4222"

	s := spec("HYPERFLEET_OWNER_UID=" + secretURL)

	out, err := run(t, s, "print", "--leader-election-retry-period", "7s", "--areas", "a,"+secretURL)
	if err != nil || strings.Contains(out, "hunter2") || !strings.Contains(out, "REDACTED@broker:4222") {
		t.Errorf("print: %v\n%s", err, out)
	}

	again, err := load(t, spec(), out)
	if err != nil || again.Config.Leader.RetryPeriod != 7*time.Second || !again.Config.Leader.Enabled {
		t.Errorf("what print prints does not load: %v\n%s", err, out)
	}

	out, err = run(t, s, "print", "--redacted=false")
	if err != nil || !strings.Contains(out, secretURL) {
		t.Errorf("print --redacted=false: %v\n%s", err, out)
	}

	out, err = run(t, s, "print", "--sources", "--log-level", "WARN")
	if err != nil || !strings.Contains(out, "log.level = WARN (flag --log-level)") ||
		!strings.Contains(out, "leaderElection.retryPeriod = 2s (default)") || strings.Contains(out, "hunter2") {
		t.Errorf("print --sources: %v\n%s", err, out)
	}

	out, err = run(t, s, "validate")
	if err != nil || !strings.Contains(out, "valid") {
		t.Errorf("validate: %v\n%s", err, out)
	}

	if _, err = run(t, spec("HYPERFLEET_X=1"), "validate"); err == nil {
		t.Error("validate found nothing wrong")
	}

	out, err = run(t, s, "print", "--help")
	if err != nil || !strings.Contains(out, "least level that is logged; sets log.level (env HYPERFLEET_LOG_LEVEL)") {
		t.Errorf("help: %v\n%s", err, out)
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(head + "log: {level: DEBUG}\nareas: [a]\nbinaries: {x: y}\nleaderElection: {retryPeriod: 3s}"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? {}\n: 1"))

	dir := f.TempDir()

	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}

		got, err := spec("HYPERFLEET_CONFIG=" + path).Load(nil)
		if err == nil && got.Config.Kind != "Settings" {
			t.Errorf("loaded %+v", got.Config)
		}
	})
}
