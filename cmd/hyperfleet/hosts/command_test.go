// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	linuxplan "github.com/hyperfleet/hyperfleet/hosts/plan/linux"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	os.Exit(kube.Run(m, func(e *kube.Env) { env = e }, kube.WithCRDs("../../../deploy/crds"), kube.WithScheme(infrav1.AddToScheme)))
}

// settings writes an operator's configuration and gives its path.
func settings(t *testing.T, agent string) string {
	t.Helper()

	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent": agent, "exporter": "exporter",
		"operator.yaml": "apiVersion: config.hyperfleet.io/v1alpha1\nkind: OperatorConfig\nhosts:\n  linux:\n    vmCIDR: 192.168.122.0/24\n" +
			"    agentFile: " + filepath.Join(dir, "agent") + "\n    nodeExporterFile: " + filepath.Join(dir, "exporter") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return filepath.Join(dir, "operator.yaml")
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	cmd := hosts.New()
	cmd.SetArgs(append(args, "--kubeconfig", env.Kubeconfig(t, env.Config)))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true

	err := cmd.ExecuteContext(t.Context())

	return out.String(), err
}

func host(t *testing.T, namespace, name string, status infrav1.HostStatus) {
	t.Helper()

	m := &infrav1.LinuxMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: infrav1.LinuxMachineSpec{
			FleetName: "racks", Address: "192.0.2.1", SSHKeySecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "none", Key: "key"},
		},
	}
	if err := env.Client.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}

	m.Status.HostStatus = status
	if err := env.Client.Status().Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

type found struct {
	Name, Action, Why, Error string
	Changes                  []struct{ Label, What string }
	Lost, Push               []string
}

// What is told is what would be pushed, without a Secret or a host to ask.
func TestDiff(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	file := settings(t, "agent one")

	fleet, err := linux.Load(config.LinuxHosts{
		MaxPods: config.Default().Hosts.Linux.MaxPods, VMCIDR: "192.168.122.0/24",
		AgentFile:        filepath.Join(filepath.Dir(file), "agent"),
		NodeExporterFile: filepath.Join(filepath.Dir(file), "exporter"),
	}, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}

	parts := func(name string, without ...string) []infrav1.HostPart {
		cfg := fleet
		cfg.NodeName, cfg.Kubeconfig = name, log.NewSecret("x")

		p, err := linuxplan.Render(cfg)
		if err != nil {
			t.Fatal(err)
		}

		var out []infrav1.HostPart

		for _, d := range p.Digests() {
			if !slices.Contains(without, d.Label) {
				out = append(out, infrav1.HostPart{Label: d.Label, SHA256: d.SHA256})
			}
		}

		return out
	}
	hash := linux.New(fleet).Hash()

	host(t, namespace, "a-good", infrav1.HostStatus{Bootstrapped: true, HostConfigHash: hash, Parts: parts("a-good")})
	host(t, namespace, "b-new", infrav1.HostStatus{})
	host(t, namespace, "c-old", infrav1.HostStatus{Bootstrapped: true, HostConfigHash: "old", Parts: parts("c-old", "agent")})
	host(t, namespace, "d-lost", infrav1.HostStatus{
		Bootstrapped: true, HostConfigHash: hash, Parts: parts("d-lost"), LostParts: []string{"firewall-rules"},
	})
	host(t, namespace, "e-failed", infrav1.HostStatus{
		Bootstrapped: true, FailedHostConfigHash: hash, Parts: parts("e-failed"), FailureReason: "UpdateExceededRetries", FailureMessage: "because",
	})

	text, err := run(t, "diff", "--config", file, "-n", namespace, "--output", "json")
	if err != nil {
		t.Fatal(err)
	}

	var all []found
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 5 {
		t.Fatalf("%v: %s", err, text)
	}

	for i, want := range []struct {
		action string
		push   []string
	}{
		{"Nothing", []string{}},
		{"FirstBoot", nil},
		{"Update", []string{"agent", "agent-service"}},
		{"Repair", []string{"firewall-rules", "firewall"}},
		{"Terminal", []string{}},
	} {
		got := all[i]
		if got.Action != want.action || got.Error != "" || want.push != nil && !cmp.Equal(got.Push, want.push) {
			t.Errorf("%+v: want %+v", got, want)
		}
	}

	if len(all[1].Push) < 10 || len(all[2].Changes) != 1 || all[4].Why != "UpdateExceededRetries: because" {
		t.Errorf("%+v", all)
	}

	text, err = run(t, "diff", "--config", file, "-n", namespace, "--host", "c-old")
	if err != nil || !strings.Contains(text, "agent (added), agent-service") || strings.Contains(text, "a-good") {
		t.Errorf("%v: %s", err, text)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	fleet := &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "racks", Namespace: namespace}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	}

	if err := env.Client.Create(t.Context(), fleet); err != nil {
		t.Fatal(err)
	}

	for _, step := range []struct {
		command         string
		paused, resumed bool
	}{{"pause", true, false}, {"resume", false, true}} {
		out, err := run(t, step.command, "racks", "-n", namespace)
		if err != nil || !strings.Contains(out, namespace+"/racks is "+step.command+"d") {
			t.Errorf("%v: %s", err, out)
		}

		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(fleet), fleet); err != nil {
			t.Fatal(err)
		}

		if fleet.Spec.Paused != step.paused || (fleet.Spec.ResumedAt != nil) != step.resumed {
			t.Errorf("%s: %+v", step.command, fleet.Spec)
		}
	}
}

func TestBadInputIsNamed(t *testing.T) {
	t.Parallel()

	file := settings(t, "agent")

	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no fleet":         {[]string{"pause"}, "name one fleet"},
		"unknown fleet":    {[]string{"resume", "none", "-n", "default"}, "get fleet none in namespace default"},
		"unknown output":   {[]string{"diff", "--config", file, "--output", "xml"}, "use table or json"},
		"unknown host":     {[]string{"diff", "--config", file, "-n", "default", "--host", "none"}, "there is no host none"},
		"no configuration": {[]string{"diff", "--config", filepath.Join(t.TempDir(), "none")}, "read configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if out, err := run(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
