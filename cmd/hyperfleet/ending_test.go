// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/silence"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestCommandsEnd checks that each command that calls the API server ends in time after SIGTERM while the API
// server accepts connections and does not answer.
func TestCommandsEnd(t *testing.T) {
	t.Parallel()

	for _, args := range []string{
		"doctor", "jobs", "job x", "addresses", "top --once", "web --bind-address 127.0.0.1:0", "hosts diff", "hosts push x", "uninstall",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()

			server := silence.Listen(t)
			words := append(strings.Fields(args), "--kubeconfig", moveServer(t, env.Kubeconfig(t, env.Config), server.Address))
			process := startProgram(t, nil, words...)
			server.WaitForConnection(t)
			silence.Stop(t, process)
		})
	}
}

// TestOperatorEnds checks that the operator ends in time after SIGTERM while one of its servers accepts
// connections and does not answer.
func TestOperatorEnds(t *testing.T) {
	t.Parallel()

	// The operator reconciles the objects of all namespaces, so it has an API server of its own.
	own := kube.Start(t, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))

	for _, tc := range []struct {
		server string
		// isRunning is true if the API server stops answering after the operator has become ready.
		isRunning bool
		// isRepeated is true if a second signal follows, which kills the operator.
		isRepeated bool
	}{
		{server: "API server"},
		{server: "API server, in the middle", isRunning: true},
		{server: "API server, with a second signal", isRunning: true, isRepeated: true},
		{server: "collector"},
	} {
		t.Run(tc.server, func(t *testing.T) {
			t.Parallel()

			namespace, server := own.Namespace(t), silence.Listen(t)
			kubeconfig := own.Kubeconfig(t, own.Config)
			environment := []string{}

			if strings.HasPrefix(tc.server, "API server") {
				if tc.isRunning {
					server = silence.NewProxy(t, strings.TrimPrefix(own.Config.Host, "https://"))
				}

				kubeconfig = moveServer(t, kubeconfig, server.Address)
			}

			if tc.server == "collector" {
				environment = append(environment, "HYPERFLEET_TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+server.Address)
			}

			health := loopback.Address(t)
			process := startProgram(t, environment, "operator", "--kubeconfig", kubeconfig, "--config", writeTempFile(t, operatorConfig(namespace, health)))

			switch {
			case tc.isRunning, tc.server == "collector":
				waitUntilReady(t, process, health)
				timing.WaitUntil(t, "the operator leads", func() bool {
					leases := &coordinationv1.LeaseList{}
					err := own.Client.List(t.Context(), leases, client.InNamespace(namespace))

					// A renewal shows that the operator has received the response to the creation of its Lease.
					return err == nil && len(leases.Items) > 0 && leases.Items[0].Spec.RenewTime.After(leases.Items[0].Spec.AcquireTime.Time)
				})
				server.Silence()
				// Nothing shows that a call does not return. The operator renews its Lease every two seconds.
				time.Sleep(3 * time.Second)
			default:
				server.WaitForConnection(t)
			}

			if tc.isRepeated {
				killWithSignals(t, process)
			} else {
				silence.Stop(t, process)
			}
		})
	}
}

// killWithSignals repeats SIGTERM until a process has ended, and checks that a signal has killed it.
func killWithSignals(t *testing.T, process *procrun.Process) {
	t.Helper()

	for running := true; running; {
		_ = process.Signal(syscall.SIGTERM) // it may have ended

		select {
		case <-process.Done():
			running = false
		case <-time.After(50 * time.Millisecond):
		}
	}

	if code := process.ExitCode(); code != -1 {
		t.Errorf("the operator ended with code %d, want a signal to kill it\n%s", code, process.LogTail())
	}
}

func operatorConfig(namespace, health string) string {
	return "apiVersion: config.hyperfleet.io/v1alpha1\nkind: OperatorConfig\nnamespace: " + namespace +
		"\nmetrics: {bindAddress: '0'}\nwebhooks: {bindAddress: '0'}\nhealth: {bindAddress: '" + health + "'}\n"
}

// silentServer is a server of the operator that accepts connections and does not answer.
type silentServer struct {
	name string
	// use makes the operator call the server at an address, and returns the operator's namespace and lines of its
	// configuration.
	use func(t *testing.T, own *kube.Env, address string) (namespace, lines string)
}

func silentServers() []silentServer {
	return []silentServer{
		{"Proxmox VE", useProxmox},
		{"libvirt", useLibvirt},
		{"CI platform", useCIPlatform},
		{"SSH host", useSSHHost},
		{"Scaleway", useScaleway},
		{"log store", useLogStore},
		{"SPIRE", useSPIRE},
		{"KubeVirt cluster", useKubeVirt},
		{"provider program", useProviderProgram},
		{"DNS server", useDNSServer},
	}
}

// TestOperatorEndsBesideSilentServers checks that the operator ends in time after SIGTERM while it waits for the answer
// of a server that its objects or its configuration name.
func TestOperatorEndsBesideSilentServers(t *testing.T) {
	t.Parallel()

	// Each operator reconciles the objects of all namespaces, so it has an API server of its own.
	const atOnce = 2

	running := make(chan struct{}, atOnce)

	for _, tc := range silentServers() {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			running <- struct{}{}
			defer func() { <-running }()

			own := kube.Start(t, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme, infrav1.AddToScheme))
			server := silence.Listen(t)

			if tc.name == "SPIRE" || tc.name == "provider program" {
				server = silence.ListenUnix(t, filepath.Join(t.TempDir(), "socket"))
			}

			namespace, lines := tc.use(t, own, server.Address)
			config := writeTempFile(t, operatorConfig(namespace, loopback.Address(t))+lines)
			process := startProgram(t, nil, "operator", "--kubeconfig", own.Kubeconfig(t, own.Config), "--config", config)

			server.WaitForConnection(t)
			silence.Stop(t, process)
		})
	}
}

// createSecret creates a Secret in the operator's namespace.
func createSecret(t *testing.T, own *kube.Env, data map[string]string) {
	t.Helper()
	own.Create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "server"}, StringData: data})
}

func secretSource(key string) map[string]any {
	return map[string]any{"secretKeyRef": map[string]any{"name": "server", "key": key, "namespace": metav1.NamespaceDefault}}
}

func useProxmox(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()
	createSecret(t, own, map[string]string{"tokenId": "hf@pve!hf", "tokenSecret": "0123"})
	own.Create(t, newObject("HypervisorCluster", "", "silent", map[string]any{
		"provider": "proxmox", "endpoint": "https://" + address + "/api2/json",
		"credentials": map[string]any{"tokenId": secretSource("tokenId"), "tokenSecret": secretSource("tokenSecret")},
	}))

	return metav1.NamespaceDefault, ""
}

func useLibvirt(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()

	key, _ := machosttest.NewKey(t)
	createSecret(t, own, map[string]string{"key": key.Reveal()})
	own.Create(t, newObject("HypervisorCluster", "", "silent", map[string]any{
		"provider": "libvirt", "credentials": map[string]any{"sshPrivateKey": secretSource("key")},
		"libvirt": map[string]any{"hosts": []any{map[string]any{
			"name": "silent", "uri": "qemu+ssh://hyperfleet@" + address + "/system", "network": "default",
			"sshHostKey": "SHA256:uNiVztksCsDhcc0u9e8BrrJXVnGwbCDDTPPnUiDzDcw",
		}}},
	}))

	return metav1.NamespaceDefault, ""
}

func useCIPlatform(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()

	f := fleet.New(t, own, fleet.Options{})
	f.CreateCluster(f.NewCluster())

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.APIURL = "http://" + address
	own.Create(t, template)

	return f.Namespace, "runners: {platformURLs: ['http://" + address + "']}\n"
}

func useSSHHost(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()

	host, port, err := net.SplitHostPort(address)
	must.Do(t, err)

	number, err := strconv.ParseInt(port, 10, 32)
	must.Do(t, err)

	key, _ := machosttest.NewKey(t)
	createSecret(t, own, map[string]string{"key": key.Reveal(), "kubeconfig": "users: []"})
	own.Create(t, &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "silent"}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	})
	own.Create(t, &infrav1.LinuxMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "silent"},
		Spec: infrav1.LinuxMachineSpec{
			FleetName: "silent", Address: host, Port: int32(number), User: "hyperfleet",
			SSHHostKeys:         infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
			SSHKeySecretRef:     infrav1.LocalSecretKeySelector{Name: "server", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "server", Key: "kubeconfig"},
		},
	})

	agent := writeTempFile(t, "agent")

	return metav1.NamespaceDefault, fmt.Sprintf("hosts: {linux: {agentFile: %q, nodeExporterFile: %q, vmCIDR: 192.168.122.0/24}}\n", agent, agent)
}

func useScaleway(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()

	key, _ := machosttest.NewKey(t)
	createSecret(t, own, map[string]string{
		infrav1.ScalewayAccessKey: "SCWXXXXXXXXXXXXXXXXX", infrav1.ScalewaySecretKey: "11111111-1111-1111-1111-111111111111",
		infrav1.ScalewayProjectID: "22222222-2222-2222-2222-222222222222", infrav1.ScalewayAPIURL: "http://" + address,
		"key": key.Reveal(), "kubeconfig": "users: []",
	})
	own.Create(t, &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "silent"}, Spec: infrav1.HostFleetSpec{HostKind: mac.Name},
	})
	own.Create(t, &infrav1.ScalewayAppleSiliconMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "silent"},
		Spec: infrav1.ScalewayAppleSiliconMachineSpec{
			FleetName: "silent", Type: "M1-M", Zone: "fr-par-3", OS: "macos-sequoia-15.3", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: "server"},
			SSHKeySecretRef:     infrav1.LocalSecretKeySelector{Name: "server", Key: "key"},
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: "server", Key: "kubeconfig"},
		},
	})

	agent := writeTempFile(t, "agent")

	return metav1.NamespaceDefault, fmt.Sprintf("runners: {platformURLs: ['http://%s']}\nhosts: {mac: {maxPods: 2, tartKubeletFile: %q, tartFile: %q, nodeExporterFile: %q}}\n",
		address, agent, agent, agent)
}

func useLogStore(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()
	createSecret(t, own, map[string]string{"accessKeyId": "id", "secretAccessKey": "secret"})
	own.Create(t, &v1alpha1.RunnerLog{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "silent", Labels: map[string]string{v1alpha1.LabelLogStore: v1alpha1.LogStorePending},
		},
		Spec: v1alpha1.RunnerLogSpec{Claim: "silent", Text: "log"},
	})

	return metav1.NamespaceDefault, fmt.Sprintf("runners: {logs: {keepIn: store, store: {endpoint: 'https://%s', region: eu-1, bucket: logs, secret: server}}}\n", address)
}

func useSPIRE(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()

	f := fleet.New(t, own, fleet.Options{})
	f.CreateCluster(f.NewCluster())

	template := f.NewTemplate()
	template.Spec.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationJoinToken}
	own.Create(t, template)
	own.Create(t, f.NewClaim("silent"))

	return f.Namespace, fmt.Sprintf("runners: {platformURLs: [%q]}\nidentity: {spire: {address: 'unix://%s', trustDomain: example.com, machineAddress: 'spire:8081'}}\n",
		f.GitHub.URL, address)
}

func useKubeVirt(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()

	kubeconfig, err := os.ReadFile(moveServer(t, own.Kubeconfig(t, own.Config), address))
	must.Do(t, err)
	createSecret(t, own, map[string]string{"kubeconfig": string(kubeconfig)})
	own.Create(t, newObject("HypervisorCluster", "", "silent", map[string]any{
		"provider": "kubevirt", "kubevirt": map[string]any{
			"namespace":           "machines",
			"kubeconfigSecretRef": map[string]any{"name": "server", "key": "kubeconfig", "namespace": metav1.NamespaceDefault},
		},
	}))

	return metav1.NamespaceDefault, ""
}

func useProviderProgram(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()
	own.Create(t, newObject("HypervisorCluster", "", "silent", map[string]any{
		"provider": "external", "external": map[string]any{"address": "unix://" + address},
	}))

	return metav1.NamespaceDefault, ""
}

func useDNSServer(t *testing.T, own *kube.Env, address string) (namespace, lines string) {
	t.Helper()
	createSecret(t, own, map[string]string{
		"tokenId": "hf@pve!hf", "tokenSecret": "0123", "keyName": "hyperfleet.", "key": base64.StdEncoding.EncodeToString(make([]byte, 32)),
	})
	own.Create(t, newObject("HypervisorCluster", "", "silent", map[string]any{
		"provider": "proxmox", "endpoint": "https://127.0.0.1:1/api2/json",
		"credentials": map[string]any{"tokenId": secretSource("tokenId"), "tokenSecret": secretSource("tokenSecret")},
		"dns": map[string]any{"registerVMs": true, "domain": "ci.example.com", "dnsProvider": map[string]any{
			"type": "rfc2136", "server": address, "zones": []any{"ci.example.com"},
			"credentials": map[string]any{"keyName": secretSource("keyName"), "key": secretSource("key")},
		}},
	}))
	own.Create(t, &v1alpha1.DNSRegistration{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "silent"},
		Spec: v1alpha1.DNSRegistrationSpec{
			Claim: v1alpha1.DNSRegistrationClaim{
				Kind: v1alpha1.KindMachineClaim, Namespace: metav1.NamespaceDefault, Name: "silent", UID: "1",
			},
			HypervisorCluster: "silent", FQDN: "silent.ci.example.com", Addresses: []string{"192.0.2.7"},
		},
	})

	return metav1.NamespaceDefault, ""
}

// moveServer writes a kubeconfig again with another address of the API server, and returns its path.
func moveServer(t *testing.T, path, address string) string {
	t.Helper()

	config, err := clientcmd.LoadFromFile(path)
	must.Do(t, err)

	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + address
	}

	out := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, out))

	return out
}

// startProgram starts the program as a process.
func startProgram(t *testing.T, environment []string, args ...string) *procrun.Process {
	t.Helper()

	dir := t.TempDir()
	process, err := procrun.Start(context.Background(), procrun.Spec{
		Name: args[0], Path: os.Args[0], Args: args, Dir: dir, LogPath: filepath.Join(dir, "log"),
		Env: append(environment, envProgram+"=1", "PATH="+os.Getenv("PATH"), "HOME="+dir),
	})
	must.Do(t, err)

	t.Cleanup(func() { _ = process.Kill() })

	return process
}

func waitUntilReady(t *testing.T, process *procrun.Process, address string) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	if err := process.WaitReady(ctx, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", http.NoBody)
		if err != nil {
			return err
		}

		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}

		if answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}

		return errors.Join(err, answer.Body.Close())
	}); err != nil {
		t.Fatalf("%v\n%s", err, process.LogTail())
	}
}
