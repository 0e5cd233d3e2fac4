// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/e2e/vm"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/libvirt"
)

// guideStep matches a block of commands that this test or TestLibvirtGuide runs, and a file in YAML whose name the text before
// it says.
var guideStep = regexp.MustCompile("(?s)<!-- run: (?:TestFirstJobByTheLibvirtGuide|TestLibvirtGuide in [a-z/]+) -->\n```sh\n(.*?)```|the file `([a-z]+.yaml)`[^\n]*\n\n```yaml\n(.*?)```")

// guideRun follows the libvirt guide.
type guideRun struct {
	*testing.T

	fleet    *fleet.Fleet
	host     *libvirt.Host
	operator *vm.Operator
	dir      string
	// output is the output of the last block of commands.
	output      string
	environment []string
}

// The libvirt guide leads from a host with the packages to the first job. The host's name, its directories and the size of
// the machines are the test's.
func TestFirstJobByTheLibvirtGuide(t *testing.T) { //nolint:paralleltest // the boots must not run in parallel
	images := vm.FindImages(t)
	logs := images.CreateLogDir(t)
	env := kube.Start(t, kube.WithCRDs("../../../deploy/crds"))

	f := fleet.New(t, env, fleet.Options{})
	f.Timeout = waitTimeout

	host := libvirt.Start(t, libvirt.Options{})
	t.Cleanup(func() { vm.KeepConsole(t, host, filepath.Join(logs, "host.log")) })

	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}

	g := &guideRun{T: t, fleet: f, host: host, dir: t.TempDir()}
	g.environment = append(os.Environ(), "HOME="+g.dir, "PATH="+bin+":"+os.Getenv("PATH"),
		"KUBECONFIG="+env.Kubeconfig(t, env.Config), "LIBVIRT_DEFAULT_URI="+host.URI())

	// The image of these tests has no boot loader, so a domain that has its kernel is the template.
	image, err := host.Publish(images.NewLibvirt(t))
	if err == nil {
		err = host.CreateTemplate(image)
	}

	if err == nil {
		err = os.Symlink(image.Disk, filepath.Join(g.dir, "runner.qcow2"))
	}

	if err == nil {
		err = os.WriteFile(filepath.Join(g.dir, "github-token"), []byte(githubtest.PAT), 0o600)
	}

	if err != nil {
		t.Fatal(err)
	}

	proxy := vm.StartForgeProxy(t, f)
	g.operator = vm.StartOperator(t, f, nil, logs)

	page, err := os.ReadFile("../../../docs/guides/libvirt.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, step := range guideStep.FindAllStringSubmatch(string(page), -1) {
		g.follow(step[1], step[2], step[3], proxy)
	}

	g.checkClean()
}

// follow runs a block of commands, or writes a file.
func (g *guideRun) follow(commands, name, content, proxy string) {
	g.Helper()

	switch {
	case name != "":
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(g.adapt(content, proxy)), 0o600); err != nil {
			g.Fatal(err)
		}

		return
	case strings.Contains(commands, "virsh metadata"):
		commands = strings.ReplaceAll(commands, "metadata runner", "metadata "+libvirt.TemplateName)
	case strings.Contains(commands, "hyperfleet jobs"):
		g.runJob()
	}

	g.run(g.adapt(commands, proxy))

	// This is what the commands for systemd do.
	if strings.Contains(commands, "-out servercert.pem") {
		path := func(name string) string { return filepath.Join(g.dir, name) }

		err := g.host.EnableTLS(g.Context(), libvirt.TLS{
			CAFile: path("cacert.pem"), CertFile: path("servercert.pem"), KeyFile: path("serverkey.pem"),
		})
		if err != nil {
			g.Fatal(err)
		}
	}
}

// adapt replaces what differs between the guide and this test.
func (g *guideRun) adapt(text, proxy string) string {
	return strings.NewReplacer(
		"/var/lib/libvirt/runners", filepath.Join(g.host.Dir, "runners"),
		"qemu+tls://host-1.example.com/system", strings.ReplaceAll(g.host.TLSURI(), "127.0.0.1", "localhost"),
		"host-1.example.com", "localhost",
		"        bridge: br0\n", "",
		"  libvirt:\n    hosts:", "  libvirt:\n    domainType: qemu\n    hosts:",
		"OUTPUT_OF_BASE64", g.output[strings.LastIndex(g.output, "\n")+1:],
		"hyperfleet-system", g.fleet.Namespace,
		"volume: runner.qcow2", "domain: "+libvirt.TemplateName,
		"{cpu: 4, memory: 8Gi, disk: 50Gi}", "{cpu: 2, memory: 1Gi, disk: 4Gi}",
		"{owner: example, repository: app,", "{apiUrl: '"+proxy+"', owner: octo-org, repository: octo-repo,",
	).Replace(text)
}

func (g *guideRun) run(commands string) {
	g.Helper()

	command := exec.CommandContext(g.Context(), "sh", "-ec", commands)
	command.Dir, command.Env = g.dir, g.environment

	var problems strings.Builder

	command.Stderr = &problems

	out, err := command.Output()
	if err != nil {
		g.Fatalf("%v\n%s\n%s%s", err, commands, out, problems.String())
	}

	g.output = strings.TrimSpace(string(out))
}

// runJob runs a job as a workflow on GitHub does. The job waits until the file /tmp/done exists, which a shell in its
// machine creates.
func (g *guideRun) runJob() {
	g.Helper()
	g.fleet.GitHub.Queue(control.JobSpec{
		Labels: []string{"self-hosted", "linux"}, Command: jobScript + "\nuntil test -e /tmp/done; do sleep 0.2; done",
	})
	g.fleet.Eventually("the job being in progress", func() (bool, string) {
		status := g.fleet.GitHub.State().Jobs[0].Status

		return status == "in_progress", status
	})

	var claims v1alpha1.MachineClaimList
	if err := g.fleet.Client.List(g.Context(), &claims, client.InNamespace("ci")); err != nil || len(claims.Items) != 1 {
		g.Fatalf("want one claim, got %d (%v)", len(claims.Items), err)
	}

	g.run("kubectl -n ci create serviceaccount debugger\n" +
		"kubectl -n ci create role machine-shell --verb=get --resource=machineclaims.hyperfleet.io/shell\n" +
		"kubectl -n ci create rolebinding machine-shell --role=machine-shell --serviceaccount=ci:debugger")

	// New roles take effect after a short time.
	shell := "hyperfleet shell -n ci --service-account debugger " + g.operator.ServerFlags() + " " + claims.Items[0].Name + " -- "
	g.run("for attempt in $(seq 60); do if " + shell + "true; then break; fi; sleep 1; done\n" + shell + "id -un")

	if g.output != "root" {
		g.Errorf("the shell runs as %q, want root", g.output)
	}

	g.run(shell + "touch /tmp/done")
	g.fleet.EventuallyJobsDone(1)
}

// checkClean checks that the machine of the job is deleted, and that the last commands of the guide show the job.
func (g *guideRun) checkClean() {
	g.Helper()

	if !strings.Contains(g.output, libvirt.TemplateName) {
		g.Errorf("the last commands printed:\n%s", g.output)
	}

	g.fleet.Eventually("the deletion of the machine", func() (bool, string) {
		var claims v1alpha1.MachineClaimList
		if err := g.fleet.Client.List(g.Context(), &claims, client.InNamespace("ci")); err != nil {
			return false, err.Error()
		}

		left, err := g.host.ListMachines()
		if err != nil {
			return false, err.Error()
		}

		return len(claims.Items)+len(left) == 0, strings.Join(left, ", ")
	})

	// The console shows the boot, which begins in the initrd.
	g.run("kubectl -n ci get runnerlogs -o jsonpath='{range .items[*]}{.metadata.name} {.spec.text}{end}'")

	if !strings.Contains(g.output, "-console ") || !strings.Contains(g.output, "initrd: begins") {
		g.Errorf("the output of the console is not kept:\n%s", g.output)
	}
}

// The demo runs a job in a machine of libvirt.
func TestDemoOnLibvirt(t *testing.T) { //nolint:paralleltest // the boots must not run in parallel
	vm.FindImages(t)

	command := exec.CommandContext(t.Context(), "../../../bin/hyperfleet-demo",
		"--hypervisor", "libvirt", "--accel", "tcg", "--jobs", "1", "--timeout", waitTimeout.String(), "--output", "json")

	var progress strings.Builder

	command.Stderr = &progress

	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}

	var report struct {
		Passed                    bool
		JobsCompleted, VMsCreated int
		CallsPerVM                float64
	}

	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}

	if !report.Passed || report.JobsCompleted != 1 || report.VMsCreated != 1 || report.CallsPerVM == 0 {
		t.Errorf("unexpected report: %s\n%s", out, progress.String())
	}
}
