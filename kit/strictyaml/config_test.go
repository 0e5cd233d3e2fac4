// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

type settings struct {
	APIVersion string            `yaml:"apiVersion"`
	Kind       string            `yaml:"kind"`
	OwnerUID   string            `yaml:"ownerUID"`
	Log        logging           `yaml:"log"`
	Leader     leader            `yaml:"leaderElection"`
	Areas      []string          `yaml:"areas"`
	Binaries   map[string]string `yaml:"binaries"`
	TokenFile  string            `yaml:"tokenFile"`
}

type logging struct {
	Level string `yaml:"level"`
}

type leader struct {
	Enabled     bool          `yaml:"enabled"`
	RetryPeriod time.Duration `yaml:"retryPeriod"`
	Replicas    int           `yaml:"replicas"`
	Small       int32         `yaml:"small"`
	MaxBytes    int64         `yaml:"maxBytes"`
	Share       float64       `yaml:"share"`
}

func settingsSpec(environ ...string) *strictyaml.Spec[settings] {
	return &strictyaml.Spec[settings]{
		APIVersion: "config.test/v1", Kind: "Settings",
		Default: settings{
			APIVersion: "config.test/v1", Kind: "Settings",
			Log: logging{Level: "INFO"}, Areas: []string{"runners"}, Binaries: map[string]string{"x64": "/x"},
			Leader: leader{Enabled: true, RetryPeriod: 2 * time.Second, Replicas: 1, Share: .5},
		},
		EnvFile: "HYPERFLEET_CONFIG", OwnsPrefix: true, ForeignEnv: []string{"HYPERFLEET_DEMO_DIR"},
		Aliases: map[string]string{"log.level": "LOG_LEVEL"},
		Help:    map[string]string{"log.level": "least level that is logged"},
		Environ: func() []string { return environ },
	}
}

const head = "apiVersion: config.test/v1\nkind: Settings\n"

// loadSettings loads the settings from a file with the text, if there is a text, and from the arguments.
func loadSettings[T any](t *testing.T, s *strictyaml.Spec[T], file string, args ...string) (*T, error) {
	t.Helper()

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	if err := s.AddFlags(flags); err != nil {
		t.Fatal(err)
	}

	if file != "" {
		path := filepath.Join(t.TempDir(), "c.yaml")
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

func TestPrecedenceOfSources(t *testing.T) {
	t.Parallel()

	got, err := loadSettings(t, settingsSpec(
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
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestDefaultsStandAlone(t *testing.T) {
	t.Parallel()

	s := settingsSpec()

	got, err := s.Load(nil)
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(&s.Default, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestAliasesAndTheFileVariable(t *testing.T) {
	t.Parallel()

	got, err := settingsSpec("LOG_LEVEL=WARN").Load(nil)
	if err != nil || got.Log.Level != "WARN" {
		t.Errorf("alias: %+v, %v", got, err)
	}

	got, err = settingsSpec("LOG_LEVEL=WARN", "HYPERFLEET_LOG_LEVEL=ERROR").Load(nil)
	if err != nil || got.Log.Level != "ERROR" {
		t.Errorf("alias and variable: %+v, %v", got, err)
	}

	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(head+"ownerUID: x"), 0o600); err != nil {
		t.Fatal(err)
	}

	got, err = settingsSpec("HYPERFLEET_CONFIG=" + path).Load(nil)
	if err != nil || got.OwnerUID != "x" {
		t.Errorf("file variable: %+v, %v", got, err)
	}
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		file    string
		environ []string
		args    []string
		want    []string
	}{
		"unknown key with a similar name": {
			file: head + "log: {leve: DEBUG}", want: []string{"c.yaml:3:7: log.leve: unknown field (did you mean level?)"},
		},
		"unknown key without a similar name": {file: head + "telemetry: 1", want: []string{"c.yaml:3:1: telemetry: unknown field"}},
		"key in another case":                {file: head + "OwnerUid: x", want: []string{"OwnerUid: unknown field (did you mean ownerUID?)"}},
		"unknown variable": {
			environ: []string{"HYPERFLEET_LOG_LEVE=x"},
			want:    []string{"env HYPERFLEET_LOG_LEVE: unknown variable (did you mean HYPERFLEET_LOG_LEVEL?)"},
		},
		"unknown flag":              {args: []string{"--nope"}, want: []string{"unknown flag: --nope"}},
		"no apiVersion and no kind": {file: "ownerUID: x", want: []string{"c.yaml:1:1: apiVersion is missing: want config.test/v1", "kind is missing"}},
		"another version": {
			file: "apiVersion: config.test/v2\nkind: Settings", want: []string{`c.yaml:1:13: apiVersion: is "config.test/v2", want config.test/v1`},
		},
		"a duration without a unit": {
			file: head + "leaderElection: {retryPeriod: 30}", want: []string{"leaderElection.retryPeriod: is 30, want a duration such as 30s"},
		},
		"a number for a text":    {file: head + "ownerUID: 12", want: []string{"ownerUID: is 12, want a string (numbers in quotes)"}},
		"a text for a list":      {file: head + "areas: runners", want: []string{`areas: is "runners", want a list`}},
		"a list for a map":       {file: head + "binaries: [a]", want: []string{"binaries: is a list, want a mapping of keys to values"}},
		"a fraction for a whole": {file: head + "leaderElection: {replicas: 1.5}", want: []string{"leaderElection.replicas: is 1.5, want a whole number"}},
		"a value for a group":    {file: head + "log: DEBUG", want: []string{`log: is "DEBUG", want a mapping`}},
		"a bad variable": {
			environ: []string{"HYPERFLEET_LEADER_ELECTION_ENABLED=maybe"},
			want:    []string{`env HYPERFLEET_LEADER_ELECTION_ENABLED: leaderElection.enabled: "maybe": want true or false`},
		},
		"a bad map":    {environ: []string{"HYPERFLEET_BINARIES=x64"}, want: []string{`"x64": want a map of strings`}},
		"a bad flag":   {args: []string{"--leader-election-retry-period=soon"}, want: []string{`"soon": want a duration`}},
		"too large":    {file: head + "#" + strings.Repeat("x", 4<<20), want: []string{"larger than 4194304 bytes"}},
		"no such file": {args: []string{"--config=/no/such.yaml"}, want: []string{"/no/such.yaml: open /no/such.yaml: no such file"}},
		"all errors together": {
			file: head + "areas: x\nlgo: {}", environ: []string{"HYPERFLEET_AREA=1"},
			want: []string{`areas: is "x", want a list`, "lgo: unknown field (did you mean log?)", "env HYPERFLEET_AREA: unknown variable (did you mean HYPERFLEET_AREAS?)"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := loadSettings(t, settingsSpec(tc.environ...), tc.file, tc.args...)
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

func TestKubernetesServiceLinksAreIgnored(t *testing.T) {
	t.Parallel()

	_, err := settingsSpec(
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

	s := settingsSpec()
	s.Validate = func(c *settings) error {
		return strictyaml.ErrorAt("log.level", "%q is not a level", c.Log.Level)
	}

	_, err := loadSettings(t, s, head+"log: {level: LOUD}")
	if err == nil || !strings.HasSuffix(err.Error(), `c.yaml:3:14: log.level: "LOUD" is not a level`) {
		t.Errorf("err = %v", err)
	}
}

func TestKeysWithOneName(t *testing.T) {
	t.Parallel()

	type clash struct {
		A struct {
			B string `yaml:"b"`
		} `yaml:"a"`
		AB string `yaml:"aB"`
	}

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	if err := (&strictyaml.Spec[clash]{}).AddFlags(flags); err == nil {
		t.Error("no error")
	}
}

func TestNamesOfFlags(t *testing.T) {
	t.Parallel()

	type names struct {
		RegistryCAFile string `yaml:"registryCAFile"`
		VMDNSIP        string `yaml:"vmDNSIP"`
		Group          struct {
			CIDRs []string `yaml:"vmEgressCIDRs"`
			Name  string   `yaml:"metalLBNamespace"`
		} `yaml:"a_group"`
	}

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	if err := (&strictyaml.Spec[names]{CompoundWords: []string{"MetalLB"}}).AddFlags(flags); err != nil {
		t.Fatal(err)
	}

	var got []string

	flags.VisitAll(func(flag *pflag.Flag) { got = append(got, flag.Name) })

	want := []string{"a-group-metallb-namespace", "a-group-vm-egress-cidrs", "config", "registry-ca-file", "vm-dns-ip"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// runCommand runs the config command and returns what it prints.
func runCommand[T any](t *testing.T, s *strictyaml.Spec[T], args ...string) (string, error) {
	t.Helper()

	cmd, err := s.NewCommand()
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

	s := settingsSpec("HYPERFLEET_OWNER_UID=" + secretURL)

	out, err := runCommand(t, s, "print", "--leader-election-retry-period", "7s", "--areas", "a,"+secretURL)
	if err != nil || strings.Contains(out, "hunter2") || !strings.Contains(out, "REDACTED@broker:4222") {
		t.Errorf("print: %v\n%s", err, out)
	}

	again, err := loadSettings(t, settingsSpec(), out)
	if err != nil || again.Leader.RetryPeriod != 7*time.Second || !again.Leader.Enabled {
		t.Errorf("the printed configuration does not load: %v\n%s", err, out)
	}

	out, err = runCommand(t, s, "print", "--redacted=false")
	if err != nil || !strings.Contains(out, secretURL) {
		t.Errorf("print --redacted=false: %v\n%s", err, out)
	}

	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(head+"areas: [a]"), 0o600); err != nil {
		t.Fatal(err)
	}

	out, err = runCommand(t, s, "print", "--sources", "--log-level", "WARN", "--config", file)
	if err != nil || !strings.Contains(out, "log.level = WARN (flag --log-level)") ||
		!strings.Contains(out, "leaderElection.retryPeriod = 2s (default)") ||
		!strings.Contains(out, "areas = [a] (file "+file+")") || !strings.Contains(out, "(env HYPERFLEET_OWNER_UID)") || strings.Contains(out, "hunter2") {
		t.Errorf("print --sources: %v\n%s", err, out)
	}

	out, err = runCommand(t, s, "validate")
	if err != nil || !strings.Contains(out, "valid") {
		t.Errorf("validate: %v\n%s", err, out)
	}

	if _, err = runCommand(t, settingsSpec("HYPERFLEET_X=1"), "validate"); err == nil {
		t.Error("validate found nothing wrong")
	}

	out, err = runCommand(t, s, "print", "--help")
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

		got, err := settingsSpec("HYPERFLEET_CONFIG=" + path).Load(nil)
		if err == nil && got.Kind != "Settings" {
			t.Errorf("loaded %+v", got)
		}
	})
}
