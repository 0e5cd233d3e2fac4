// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

func TestOptions(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name string
		args string
		want []string // parts of the error; none means valid
	}{
		{name: "defaults are valid"},
		{name: "the benchmark", args: "--jobs 50 --output json"},
		{name: "500 live claims", args: "--jobs 500 --max 500 --job 60s --clone 100ms --parallel-clones 16"},
		{name: "no jobs", args: "--jobs 0", want: []string{"--jobs must be at least 1, not 0"}},
		{
			name: "every mistake is named at once", args: "--nodes 0 --job 0s",
			want: []string{"--nodes must be at least 1, not 0", "--job must be above zero, not 0s"},
		},
		{name: "negative clone", args: "--clone -1s", want: []string{"--clone must be above zero, not -1s"}},
		{name: "more machines than a pool may have", args: "--max 10001", want: []string{"--max must be at most 10000"}},
		{
			name: "more clones than a cluster allows", args: "--parallel-clones 65",
			want: []string{"--parallel-clones must be at most 64"},
		},
		{
			name: "platform", args: "--platform jenkins",
			want: []string{`--platform must be one of github, gitlab, buildkite, forgejo, gitea, generic, not "jenkins"`},
		},
		{name: "machines", args: "--vm xen", want: []string{`--vm must be sim or qemu, not "xen"`}},
		{name: "an image for simulated machines", args: "--image x", want: []string{"need --vm qemu"}},
		{
			name: "real machines", args: "--vm qemu --platform gitlab --image /does/not/exist",
			want: []string{"--vm qemu needs --platform github", "/does/not/exist: no such file", "hack/vm-image/build.sh"},
		},
		{
			name: "libvirt with another platform", args: "--hypervisor libvirt --platform gitlab --image /does/not/exist",
			want: []string{"--hypervisor libvirt needs --platform github", "--hypervisor libvirt: stat /does/not/exist: no such file"},
		},
		{name: "accelerator", args: "--vm qemu --accel hvf --image go.mod", want: []string{`--accel must be tcg or kvm, not "hvf"`}},
		{
			name: "faults of the simulator", args: "--hypervisor libvirt --faults vm-crash",
			want: []string{"need the simulator: remove --hypervisor libvirt"},
		},
		{name: "hypervisor", args: "--hypervisor xen", want: []string{`--hypervisor must be sim, libvirt or real, not "xen"`}},
		{name: "output", args: "--output yaml", want: []string{`--output must be text or json, not "yaml"`}},
		{
			name: "unknown fault", args: "--faults vm-crsh=0.1",
			want: []string{`--faults: unknown fault "vm-crsh": use one of vm-crash, clone-lock, webhooks-lost,`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			requireError(t, tt.args, tt.want...)
		})
	}
}

// requireError checks that an error contains all parts. Without parts, the error must be nil.
func requireError(t *testing.T, args string, want ...string) {
	t.Helper()

	var options Options

	flags := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	options.bind(flags)

	if err := flags.Parse(strings.Fields(args)); err != nil {
		t.Fatal(err)
	}

	err := options.validate()
	if (err != nil) != (len(want) > 0) {
		t.Fatalf("error %v, want %q", err, want)
	}

	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not contain %q", err, part)
		}
	}
}

// TestReal checks that the settings of a real hypervisor come from the environment, and that missing variables are
// reported.
func TestReal(t *testing.T) {
	authority := filepath.Join(t.TempDir(), "ca.pem")

	own := &machineAccess{certFile: authority, keyFile: filepath.Join(t.TempDir(), "key.pem")}
	if _, err := own.writeCertificate(time.Now(), loopbackAddress); err != nil {
		t.Fatal(err)
	}

	complete := map[string]string{
		"PVE_ENDPOINT": "https://pve.example.com:8006", "PVE_CA": authority, "PVE_TEMPLATE": "9000",
		"PVE_TOKEN_ID": "hyperfleet@pve!operator", "PVE_TOKEN_SECRET": "s",
		"PVE_ADMIN_TOKEN_ID": "root@pam!tests", "PVE_ADMIN_TOKEN_SECRET": "s",
		"PVE_STORAGE": "local-lvm", "PVE_ISO_STORAGE": "isos", "PVE_BRIDGE": "vmbr0",
	}

	const onReal = "--hypervisor real --address 192.0.2.7"

	for _, tt := range []struct {
		name, args  string
		environment map[string]string
		want        []string
	}{
		{name: "complete", args: onReal, environment: complete},
		{
			name: "no variables are set", args: "--hypervisor real",
			want: []string{"set PVE_ENDPOINT and the other variables (go doc ./test/realpve)", "--address must be"},
		},
		{
			name: "the rest is not set", args: onReal, environment: map[string]string{"PVE_ENDPOINT": "https://pve.example.com:8006"},
			want: []string{"PVE_ENDPOINT is set, but variables are missing: set PVE_TEMPLATE, ", "PVE_CA, ", "PVE_ADMIN_TOKEN_SECRET ("},
		},
		{
			name: "no address", args: "--hypervisor real --address here", environment: complete,
			want: []string{`--address must be the IP address at which machines on the Proxmox VE cluster reach this computer, not "here"`},
		},
		{name: "an address for the simulator", args: "--address 192.0.2.7", want: []string{"--address needs --hypervisor real"}},
		{name: "an image", args: onReal + " --vm qemu --image x", environment: complete, want: []string{"without --hypervisor real"}},
		{
			name: "another platform", args: onReal + " --platform gitlab", environment: complete,
			want: []string{"--hypervisor real needs --platform github"},
		},
		{
			name: "faults of the simulator", args: onReal + " --faults vm-crash", environment: complete,
			want: []string{"remove --hypervisor real"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name := range complete {
				t.Setenv(name, tt.environment[name])
			}

			requireError(t, tt.args, tt.want...)
		})
	}
}

// TestSettle checks the defaults for real machines and the timeouts for simulated machines.
func TestSettle(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name, args string
		want       Options
	}{
		{name: "simulated", want: Options{Jobs: 20, Max: 50, Nodes: 3, Timeout: 5*time.Minute + 3*13*time.Second}},
		{
			name: "more jobs have more time", args: "--jobs 600",
			want: Options{Jobs: 600, Max: 50, Nodes: 3, Timeout: 5*time.Minute + 3*205*time.Second},
		},
		{name: "simulated, as asked for", args: "--timeout 1m", want: Options{Jobs: 20, Max: 50, Nodes: 3, Timeout: time.Minute}},
		{
			name: "real", args: "--vm qemu",
			want: Options{Jobs: 2, Max: 2, Nodes: 1, Timeout: 30 * time.Minute, vmOptions: vmOptions{
				Image: "bin/vm/runner.qcow2", Kernel: "bin/vm/vmlinuz", Initrd: "bin/vm/runner.initrd", Append: builtAppend,
			}},
		},
		{
			name: "real, with explicit options", args: "--vm qemu --jobs 3 --max 1 --nodes 2 --timeout 1h --image my.qcow2",
			want: Options{Jobs: 3, Max: 1, Nodes: 2, Timeout: time.Hour, vmOptions: vmOptions{Image: "my.qcow2"}},
		},
		{
			name: "libvirt", args: "--hypervisor libvirt --accel tcg",
			want: Options{Jobs: 2, Max: 2, Nodes: 1, Timeout: 30 * time.Minute, vmOptions: vmOptions{
				Image: "bin/vm/runner.qcow2", Kernel: "bin/vm/vmlinuz", Initrd: "bin/vm/runner.initrd", Append: builtAppend, Accel: "tcg",
			}},
		},
		{
			name: "a real hypervisor", args: "--hypervisor real",
			want: Options{Jobs: 2, Max: 2, Nodes: 1, Timeout: 30 * time.Minute},
		},
		{
			name: "real, with other arguments", args: "--vm qemu --append quiet",
			want: Options{Jobs: 2, Max: 2, Nodes: 1, Timeout: 30 * time.Minute, vmOptions: vmOptions{
				Image: "bin/vm/runner.qcow2", Kernel: "bin/vm/vmlinuz", Initrd: "bin/vm/runner.initrd", Append: "quiet",
			}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			var o Options

			flags := pflag.NewFlagSet("demo", pflag.ContinueOnError)
			o.bind(flags)

			if err := flags.Parse(strings.Fields(tt.args)); err != nil {
				t.Fatal(err)
			}

			o.setDefaults(flags.Changed, "bin")

			got := Options{Jobs: o.Jobs, Max: o.Max, Nodes: o.Nodes, Timeout: o.Timeout, vmOptions: o.vmOptions}
			got.VM = ""

			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(Options{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseFaults(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, spec string
		want       []fault
		wantErr    string
	}{
		{name: "none"},
		{name: "a default probability", spec: "vm-crash", want: []fault{{"vm-crash", "vm-crash", injectorHypervisor, 0.1}}},
		{
			name: "several with spaces", spec: " clone-lock=0.5 , webhooks-lost=1 ",
			want: []fault{
				{"clone-lock", "clone-lock", injectorHypervisor, 0.5}, {"webhooks-lost", "webhookLost", injectorForge, 1},
			},
		},
		{
			name: "a trailing comma", spec: "webhooks-reordered=0.25,",
			want: []fault{{"webhooks-reordered", "webhookReordered", injectorForge, 0.25}},
		},
		{name: "twice", spec: "vm-crash,vm-crash=0.2", wantErr: `"vm-crash" is named twice`},
		{name: "zero", spec: "vm-crash=0", wantErr: "write a probability above 0 and at most 1, e.g. vm-crash=0.2"},
		{name: "above one", spec: "vm-crash=1.1", wantErr: "write a probability"},
		{name: "not a number", spec: "vm-crash=NaN", wantErr: "write a probability"},
		{name: "empty", spec: "vm-crash=", wantErr: "write a probability"},
		{name: "unknown", spec: "fire", wantErr: `unknown fault "fire": use one of`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got, err := parseFaults(tt.spec)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want %q", err, tt.wantErr)
				}

				return
			}

			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(fault{})); err != nil || diff != "" {
				t.Error(err, diff)
			}
		})
	}
}

func FuzzParseFaults(f *testing.F) {
	f.Add("vm-crash=0.5,webhooks-lost")
	f.Add("=,=,")
	f.Fuzz(func(t *testing.T, spec string) {
		faults, err := parseFaults(spec)
		if err != nil {
			return
		}

		for _, one := range faults {
			if !(one.probability > 0 && one.probability <= 1) {
				t.Errorf("%q was parsed as %+v", spec, one)
			}
		}

		parts := strings.FieldsFunc(formatFaults(injectorForge, faults)+","+formatFaults(injectorHypervisor, faults),
			func(r rune) bool { return r == ',' })
		if len(parts) != len(faults) {
			t.Errorf("%q: %d faults reach the programs as %q", spec, len(faults), parts)
		}
	})
}

func TestFlagFor(t *testing.T) {
	t.Parallel()

	faults, err := parseFaults("clone-lock=0.5,webhooks-lost,vm-crash=0.01")
	if err != nil {
		t.Fatal(err)
	}

	if got, want := formatFaults(injectorHypervisor, faults), "clone-lock=0.5,vm-crash=0.01"; got != want {
		t.Errorf("hypervisor: %q, want %q", got, want)
	}

	if got, want := formatFaults(injectorForge, faults), "webhookLost=0.2"; got != want {
		t.Errorf("forge: %q, want %q", got, want)
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()

	for want, err := range map[int]error{
		0: nil, cli.ExitFailed: fmt.Errorf("demo: %w", errFailed), exitInterrupted: fmt.Errorf("demo: %w", errInterrupted),
	} {
		if got := cli.ExitCode(err); got != want {
			t.Errorf("ExitCode(%v) = %d, want %d", err, got, want)
		}
	}
}

func TestNearestRank(t *testing.T) {
	t.Parallel()

	second := func(n ...int) []time.Duration {
		out := make([]time.Duration, len(n))
		for i, v := range n {
			out[i] = time.Duration(v) * time.Second
		}

		return out
	}
	hundred := make([]int, 100)

	for i := range hundred {
		hundred[i] = 100 - i
	}

	tests := []struct {
		name    string
		samples []time.Duration
		want    Latency
	}{
		{name: "none"},
		{name: "one is every percentile", samples: second(3), want: Latency{Count: 1, P50: 3, P95: 3, Max: 3}},
		{name: "two", samples: second(4, 2), want: Latency{Count: 2, P50: 2, P95: 4, Max: 4}},
		{name: "a hundred in reverse", samples: second(hundred...), want: Latency{Count: 100, P50: 50, P95: 95, Max: 100}},
		{
			name: "rounded to milliseconds", samples: []time.Duration{1234567 * time.Microsecond},
			want: Latency{Count: 1, P50: 1.235, P95: 1.235, Max: 1.235},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tt.want, summarizeLatency(tt.samples)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
