// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/test/kubelet"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

const (
	platformGuide   = "../../../docs/guides/platform.md"
	systemNamespace = "hyperfleet-system"
)

// TestInACluster installs the platform from the released manifests, with the chart as the guide shows it,
// and with kustomize as deploy/platform describes it. The API, the adapter and sweep run with their own
// service accounts. Clusters are created, changed, deleted, and swept after a forced deletion.
func TestInACluster(t *testing.T) {
	for name, install := range map[string]func(*fixture){
		"helm": (*fixture).installWithHelm, "kustomize": (*fixture).installWithKustomize, "helm, TLS": (*fixture).installWithHelm, "kustomize, TLS": (*fixture).installWithKustomize,
	} {
		t.Run(name, func(t *testing.T) {
			w := newPageFixture(t)
			w.tls = strings.HasSuffix(name, "TLS")
			w.writeFile("database-url", postgres.Start(t).NewDatabase(t))
			w.writeFile("task.yaml", w.readFile(filepath.Join(samples, "clusters", "task.yaml")))
			w.runShell(kubelet.MonitorCRDs)
			install(w)
			w.runLifecycle()
		})
	}
}

// readYAMLBlock returns a YAML block of the guide.
func (w *fixture) readYAMLBlock(number int) string {
	w.t.Helper()

	return regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(w.readFile(platformGuide), -1)[number][1]
}

// installWithHelm runs the commands of the guide. It sets min_age, because sweep would otherwise skip
// objects for ten minutes.
func (w *fixture) installWithHelm() {
	w.t.Helper()

	chart, err := filepath.Abs("../../../deploy/charts/hyperfleet-platform")
	w.must(err)
	w.must(os.Symlink(chart, filepath.Join(w.dir, "hyperfleet-platform-0.1.0.tgz")))
	w.writeFile("values.yaml", w.readYAMLBlock(0))

	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(w.readFile(platformGuide))[1]
	values := "--values values.yaml --set parts.sweep.config.min_age=1ms"

	if w.tls {
		w.writeFile("tls.yaml", w.readYAMLBlock(1))
		// The API server has no CRD for Certificates.
		values += " --values tls.yaml --set tls.certificate=null"

		rendered := w.runShell("helm template x hyperfleet-platform-0.1.0.tgz --namespace there --values tls.yaml\n")
		for _, want := range []string{"kind: Certificate", "secretName: hyperfleet-api-tls", "name: internal", "- hyperfleet-api.there.svc"} {
			if !strings.Contains(rendered, want) {
				w.t.Errorf("the chart with the guide's values does not render %s", want)
			}
		}
	}

	w.checkAutoscaling()
	w.runShell(strings.Replace(block, "--values values.yaml", values, 1))
}

// checkAutoscaling checks that the API server accepts the HorizontalPodAutoscaler of the chart, and that the Deployment
// leaves the number of replicas to it. With one replica, a PodDisruptionBudget would block the drain of its node.
func (w *fixture) checkAutoscaling() {
	w.t.Helper()

	const render = "helm template x hyperfleet-platform-0.1.0.tgz --namespace default"

	with := w.runShell(render + " --set parts.api.autoscaling.maxReplicas=4 >scaled.yaml\n" +
		"kubectl create --dry-run=server -o name -f scaled.yaml\nkubectl create --dry-run=client -o yaml -f scaled.yaml\n")
	if !strings.Contains(with, "horizontalpodautoscaler.autoscaling/hyperfleet-api") || !strings.Contains(with, "maxReplicas: 4") ||
		strings.Contains(with, "replicas: 2") || strings.Contains(with, "poddisruptionbudget") {
		w.t.Errorf("the chart with autoscaling, down to one replica, renders\n%s", with)
	}

	without := w.runShell(render + "\n")
	if strings.Contains(without, "HorizontalPodAutoscaler") || !strings.Contains(without, "replicas: 2") || !strings.Contains(without, "PodDisruptionBudget") {
		w.t.Errorf("the chart without autoscaling renders\n%s", without)
	}
}

// installWithKustomize creates the overlays that the comments of the bases show.
func (w *fixture) installWithKustomize() {
	w.t.Helper()

	deploy, err := filepath.Abs("../../../deploy")
	w.must(err)

	for _, dir := range []string{"platform", "adapter"} {
		w.must(os.Mkdir(filepath.Join(w.dir, dir), 0o700))
	}

	var values struct {
		Parts    map[string]struct{ Rules []rbacv1.PolicyRule }
		Adapters map[string]struct{ Rules []rbacv1.PolicyRule }
	}

	w.must(yaml.Unmarshal([]byte(w.readYAMLBlock(0)), &values))

	w.writeRolePatch("adapter", values.Adapters["cluster-space"].Rules)
	w.writeRolePatch("platform", values.Parts["sweep"].Rules)

	w.writeFile("adapter/task.yaml", w.readFile(filepath.Join(w.dir, "task.yaml")))
	w.writeFile("adapter/adapter.yaml", strings.Replace(w.readConfigMapFile(deploy, "adapter/adapter.yaml", "adapter.yaml"),
		"adapter:\n", "events: {resource_type: clusters}\nadapter:\n  name: cluster-space\n", 1))
	w.writeFile("platform/api.yaml", w.readConfigMapFile(deploy, "api.yaml", "api.yaml")+
		"entities:\n- {kind: Cluster, plural: clusters, required_adapters: [cluster-space], name_min_len: 3, name_max_len: 53}\n")
	w.writeFile("platform/sweep.yaml", strings.Replace(w.readConfigMapFile(deploy, "sweep.yaml", "sweep.yaml"), "[ConfigMap]", "[Namespace, Job.batch]\nmin_age: 1ms", 1))
	w.writeFile("platform/delete.yaml", `[{"op": "add", "path": "/spec/jobTemplate/spec/template/spec/containers/0/args/-", "value": "--delete"}]`)

	comment := regexp.MustCompile(`(?m)^# {3}(.*)$`).FindAllStringSubmatch(w.readFile(filepath.Join(deploy, "platform", "adapter", "kustomization.yaml")), -1)

	var shown strings.Builder

	for _, line := range comment {
		shown.WriteString(line[1] + "\n")
	}

	own := strings.NewReplacer("dns", "cluster-space", "../hyperfleet/deploy", w.relativePath(deploy))
	components := ""

	if w.tls {
		components = "components: [" + w.relativePath(deploy) + "/platform/tls]\n"
	}

	w.writeFile("adapter/kustomization.yaml", own.Replace(shown.String())+components)
	w.writeFile("platform/kustomization.yaml", components+`resources: [`+w.relativePath(deploy)+`/platform]
configMapGenerator:
  - {name: hyperfleet-api, namespace: hyperfleet-system, behavior: merge, files: [api.yaml]}
  - {name: hyperfleet-sweep, namespace: hyperfleet-system, behavior: merge, files: [sweep.yaml]}
patches:
  - {path: rules.yaml, target: {kind: ClusterRole, name: hyperfleet-sweep}}
  - {path: delete.yaml, target: {kind: CronJob}}
`)
	w.writeFile("identity-key", identityKey)
	w.runShell("deploy='" + deploy + "'" + `
kubectl apply --server-side -k platform
kubectl apply --server-side -k adapter
kubectl apply --server-side -f "$deploy/monitoring/podmonitor.yaml"
kubectl create secret generic hyperfleet-database --namespace hyperfleet-system --from-file=url=database-url
kubectl create secret generic hyperfleet-identity --namespace hyperfleet-system --from-file=key=identity-key
`)
}

// writeRolePatch writes the patch of a role.
func (w *fixture) writeRolePatch(dir string, rules []rbacv1.PolicyRule) {
	w.t.Helper()

	patch, err := yaml.Marshal([]map[string]any{{"op": "replace", "path": "/rules", "value": rules}})
	w.must(err)
	w.writeFile(dir+"/rules.yaml", string(patch))
}

// readConfigMapFile returns a file of a ConfigMap of the platform's manifests.
func (w *fixture) readConfigMapFile(deploy, file, name string) string {
	w.t.Helper()

	objects, err := kubeproc.ReadObjects(filepath.Join(deploy, "platform", file))
	w.must(err)

	for _, object := range objects {
		if text, found, err := unstructured.NestedString(object.Object, "data", name); found {
			w.must(err)

			return text
		}
	}

	w.t.Fatalf("%s has no %s", file, name)

	return ""
}

// relativePath returns a path relative to an overlay.
func (w *fixture) relativePath(path string) string {
	w.t.Helper()

	// kustomize resolves symbolic links before it compares paths.
	dir, err := filepath.EvalSymlinks(w.dir)
	w.must(err)

	out, err := filepath.Rel(filepath.Join(dir, "adapter"), path)
	w.must(err)

	return out
}

// runShell runs commands with the permissions of a cluster administrator, and returns their output.
func (w *fixture) runShell(commands string) string {
	w.t.Helper()

	cmd := exec.CommandContext(w.t.Context(), "/bin/bash", "-eu", "-o", "pipefail", "-c", commands)
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kube.Kubeconfig(w.t, w.kube.Config), "HOME="+w.dir, "no_proxy=*")

	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", commands, err, out)
	}

	return string(out)
}

// runLifecycle runs the programs in the cluster, and creates, changes, deletes and sweeps clusters.
func (w *fixture) runLifecycle() {
	w.t.Helper()

	node := &kubelet.Node{T: w.t, Env: w.kube, Namespace: systemNamespace, Binary: binary}
	scheme, file := "http://", ""

	if w.tls {
		scheme, file = "https://", w.createCertificate()
	}

	api := node.RunDeployment("hyperfleet-api", "")
	w.waitForPod("the API", api)

	w.apiURL = scheme + api.Ports["8000"]

	var err error

	w.api, err = client.New(platform.APIClient{BaseURL: w.apiURL, CAFile: file}, client.Options{})
	w.must(err)

	pods := map[string]*kubelet.Pod{"the API": api}
	for _, name := range []string{"an adapter", "another adapter"} {
		pods[name] = node.RunDeployment("hyperfleet-adapter-cluster-space", "HYPERFLEET_CLIENTS_KUBERNETES_KUBE_CONFIG_PATH")
		w.waitForPod(name, pods[name])
	}

	kubelet.CheckScrapes(w.t, w.kube, kubelet.Monitor{Kind: "PodMonitor", Namespace: systemNamespace, Name: "hyperfleet-platform"},
		"hyperfleet_adapter_up == 1", 2, slices.Collect(maps.Values(pods))...)

	// Each program restarts with a changed ConfigMap.
	w.runShell("kubectl -n " + systemNamespace + " get configmaps -o yaml | sed 's/level: info/level: debug/' | kubectl replace -f -")

	for name, pod := range pods {
		pod.UpdateVolumes()
		pod.WaitAndRestart(w.t)
		w.waitForPod(name, pod)
	}

	home, removed := w.createResource("/clusters", newSilverCluster("home")), w.createResource("/clusters", newSilverCluster("lost"))
	w.waitUntilReconciled("two clusters are reconciled")
	w.sendWithRetries(http.MethodPatch, "/clusters/"+home, map[string]any{"spec": map[string]any{"tier": "gold"}})
	w.eventually("the namespace has the new tier", func() string {
		if got := w.getNamespace("home").Labels["example.io/tier"]; got != "gold" {
			return "the tier of the namespace is " + got
		}

		return ""
	})
	w.sendWithRetries(http.MethodDelete, "/clusters/"+home, nil)
	w.eventually("the deleted cluster and its namespace are gone", func() string {
		if !w.isGone(home) || w.getNamespace("home") != nil {
			return "the cluster or its namespace exists"
		}

		return ""
	})

	for _, name := range []string{"an adapter", "another adapter"} {
		w.must(pods[name].Process.Stop())
	}

	w.sendWithRetries(http.MethodDelete, "/clusters/"+removed, nil)
	w.sendWithRetries(http.MethodPost, "/clusters/"+removed+"/force-delete", map[string]string{"reason": "end-to-end test"})

	var cron batchv1.CronJob

	w.must(w.kube.Client.Get(w.t.Context(), kubeclient.ObjectKey{Namespace: systemNamespace, Name: "hyperfleet-sweep"}, &cron))

	sweep := node.RunPod("sweep", cron.Spec.JobTemplate.Spec.Template, "HYPERFLEET_KUBE_CONFIG_PATH")
	pods["sweep"] = sweep

	if err := sweep.Process.Wait(w.t.Context()); err != nil {
		w.t.Fatalf("sweep: %v\n%s", err, sweep.Log(w.t))
	}

	w.eventually("sweep has deleted the objects of the removed cluster", func() string {
		if w.getNamespace("lost") != nil {
			return "its namespace exists: " + sweep.Log(w.t)
		}

		return ""
	})

	for name, pod := range pods {
		if log := pod.Log(w.t); strings.Contains(log, "orbidden") {
			w.t.Errorf("the service account of %s lacks a permission:\n%s", name, log)
		}
	}
}

// createCertificate creates the Secret with the API's certificate, which is also valid for the addresses of
// pods, and returns the path of the CA's file.
func (w *fixture) createCertificate() string {
	w.t.Helper()

	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()

	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	w.must(err)

	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	w.must(w.kube.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "hyperfleet-api-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"tls.crt": certificate, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "ca.crt": certificate,
		},
	}))
	w.writeFile("ca.crt", string(certificate))

	w.transport = server.Client().Transport

	return filepath.Join(w.dir, "ca.crt")
}

func newSilverCluster(name string) resource {
	return resource{Name: name, Spec: map[string]any{"tier": "silver"}}
}

// waitForPod waits until a pod's readiness probe succeeds.
func (w *fixture) waitForPod(name string, pod *kubelet.Pod) {
	w.t.Helper()
	w.eventually(name+" is ready", func() string {
		if pod.IsReady(w.t.Context()) {
			return ""
		}

		return pod.Process.LogTail()
	})
}
