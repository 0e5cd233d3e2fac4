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
	inCluster = "../../../docs/guides/platform.md"
	space     = "hyperfleet-system"
)

// What is shipped for a cluster does there what it says: API, adapter and sweep run from the
// manifests on the API server, each under its own account, and a cluster is made, changed,
// deleted, and swept after it was removed by force. By the chart, as the guide says it, word for
// word; and by kustomize, as deploy/platform says it.
func TestInACluster(t *testing.T) {
	for name, install := range map[string]func(*world){
		"helm": (*world).byHelm, "kustomize": (*world).byKustomize, "helm, TLS": (*world).byHelm, "kustomize, TLS": (*world).byKustomize,
	} {
		t.Run(name, func(t *testing.T) {
			w := newPageWorld(t)
			w.tls = strings.HasSuffix(name, "TLS")
			w.write("database-url", postgres.Start(t).NewDatabase(t))
			w.write("task.yaml", w.read(filepath.Join(samples, "clusters", "task.yaml")))
			w.shell(kubelet.MonitorCRDs)
			install(w)
			w.livesInACluster()
		})
	}
}

// yamlOf is a block of YAML in the guide.
func (w *world) yamlOf(number int) string {
	w.t.Helper()

	return regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(w.read(inCluster), -1)[number][1]
}

// byHelm does what the guide says. Sweep would wait for ten minutes until an object is old.
func (w *world) byHelm() {
	w.t.Helper()

	chart, err := filepath.Abs("../../../deploy/charts/hyperfleet-platform")
	w.must(err)
	w.must(os.Symlink(chart, filepath.Join(w.dir, "hyperfleet-platform-0.1.0.tgz")))
	w.write("values.yaml", w.yamlOf(0))

	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(w.read(inCluster))[1]
	values := "--values values.yaml --set parts.sweep.config.min_age=1ms"

	if w.tls {
		w.write("tls.yaml", w.yamlOf(1))
		// The API server knows no Certificates.
		values += " --values tls.yaml --set tls.certificate=null"

		said := w.shell("helm template x hyperfleet-platform-0.1.0.tgz --namespace there --values tls.yaml\n")
		for _, want := range []string{"kind: Certificate", "secretName: hyperfleet-api-tls", "name: internal", "- hyperfleet-api.there.svc"} {
			if !strings.Contains(said, want) {
				w.t.Errorf("the values that the page shows don't give %s", want)
			}
		}
	}

	w.shell(strings.Replace(block, "--values values.yaml", values, 1))
}

// byKustomize makes the overlays that the comments of the bases show.
func (w *world) byKustomize() {
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

	w.must(yaml.Unmarshal([]byte(w.yamlOf(0)), &values))

	w.rules("adapter", values.Adapters["cluster-space"].Rules)
	w.rules("platform", values.Parts["sweep"].Rules)

	w.write("adapter/task.yaml", w.read(filepath.Join(w.dir, "task.yaml")))
	w.write("adapter/adapter.yaml", strings.Replace(w.data(deploy, "adapter/adapter.yaml", "adapter.yaml"),
		"adapter:\n", "events: {resource_type: clusters}\nadapter:\n  name: cluster-space\n", 1))
	w.write("platform/api.yaml", w.data(deploy, "api.yaml", "api.yaml")+
		"entities:\n- {kind: Cluster, plural: clusters, required_adapters: [cluster-space], name_min_len: 3, name_max_len: 53}\n")
	w.write("platform/sweep.yaml", strings.Replace(w.data(deploy, "sweep.yaml", "sweep.yaml"), "[ConfigMap]", "[Namespace, Job.batch]\nmin_age: 1ms", 1))
	w.write("platform/delete.yaml", `[{"op": "add", "path": "/spec/jobTemplate/spec/template/spec/containers/0/args/-", "value": "--delete"}]`)

	comment := regexp.MustCompile(`(?m)^# {3}(.*)$`).FindAllStringSubmatch(w.read(filepath.Join(deploy, "platform", "adapter", "kustomization.yaml")), -1)

	var shown strings.Builder

	for _, line := range comment {
		shown.WriteString(line[1] + "\n")
	}

	own := strings.NewReplacer("dns", "cluster-space", "../hyperfleet/deploy", w.relative(deploy))
	components := ""

	if w.tls {
		components = "components: [" + w.relative(deploy) + "/platform/tls]\n"
	}

	w.write("adapter/kustomization.yaml", own.Replace(shown.String())+components)
	w.write("platform/kustomization.yaml", components+`resources: [`+w.relative(deploy)+`/platform]
configMapGenerator:
  - {name: hyperfleet-api, namespace: hyperfleet-system, behavior: merge, files: [api.yaml]}
  - {name: hyperfleet-sweep, namespace: hyperfleet-system, behavior: merge, files: [sweep.yaml]}
patches:
  - {path: rules.yaml, target: {kind: ClusterRole, name: hyperfleet-sweep}}
  - {path: delete.yaml, target: {kind: CronJob}}
`)
	w.write("identity-key", identityKey)
	w.shell("deploy='" + deploy + "'" + `
kubectl apply --server-side -k platform
kubectl apply --server-side -k adapter
kubectl apply --server-side -f "$deploy/monitoring/podmonitor.yaml"
kubectl create secret generic hyperfleet-database --namespace hyperfleet-system --from-file=url=database-url
kubectl create secret generic hyperfleet-identity --namespace hyperfleet-system --from-file=key=identity-key
`)
}

// rules writes the patch of a role.
func (w *world) rules(dir string, rules []rbacv1.PolicyRule) {
	w.t.Helper()

	patch, err := yaml.Marshal([]map[string]any{{"op": "replace", "path": "/rules", "value": rules}})
	w.must(err)
	w.write(dir+"/rules.yaml", string(patch))
}

// data is a file of the ConfigMap that is among the platform's objects.
func (w *world) data(deploy, file, name string) string {
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

// relative is where something is, seen from an overlay.
func (w *world) relative(path string) string {
	w.t.Helper()

	// kustomize follows links before it compares.
	dir, err := filepath.EvalSymlinks(w.dir)
	w.must(err)

	out, err := filepath.Rel(filepath.Join(dir, "adapter"), path)
	w.must(err)

	return out
}

// shell runs commands as somebody who may do anything with the cluster, and gives what they say.
func (w *world) shell(commands string) string {
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

// livesInACluster is the life of clusters, with what runs in the cluster.
func (w *world) livesInACluster() {
	w.t.Helper()

	node := &kubelet.Node{T: w.t, Env: w.kube, Namespace: space, Binary: binary}
	scheme, file := "http://", ""

	if w.tls {
		scheme, file = "https://", w.certificate()
	}

	api := node.RunDeployment("hyperfleet-api", "")
	w.ready("the API", api)

	w.base = scheme + api.Ports["8000"]

	var err error

	w.api, err = client.New(platform.APIClient{BaseURL: w.base, CAFile: file}, client.Options{})
	w.must(err)

	pods := map[string]*kubelet.Pod{"the API": api}
	for _, name := range []string{"an adapter", "another one"} {
		pods[name] = node.RunDeployment("hyperfleet-adapter-cluster-space", "HYPERFLEET_CLIENTS_KUBERNETES_KUBE_CONFIG_PATH")
		w.ready(name, pods[name])
	}

	kubelet.CheckScrapes(w.t, w.kube, kubelet.Monitor{Kind: "PodMonitor", Namespace: space, Name: "hyperfleet-platform"},
		"hyperfleet_adapter_up == 1", 2, slices.Collect(maps.Values(pods))...)

	// A changed ConfigMap is taken up by each.
	w.shell("kubectl -n " + space + " get configmaps -o yaml | sed 's/level: info/level: debug/' | kubectl replace -f -")

	for name, pod := range pods {
		pod.UpdateVolumes()
		pod.WaitAndRestart(w.t)
		w.ready(name, pod)
	}

	home, lost := w.create("/clusters", silver("home")), w.create("/clusters", silver("lost"))
	w.settled("two clusters are reconciled")
	w.send(http.MethodPatch, "/clusters/"+home, map[string]any{"spec": map[string]any{"tier": "gold"}})
	w.eventually("one is changed", func() string {
		if got := w.namespace("home").Labels["example.io/tier"]; got != "gold" {
			return "its tier is " + got
		}

		return ""
	})
	w.send(http.MethodDelete, "/clusters/"+home, nil)
	w.eventually("it is gone, with its objects", func() string {
		if !w.gone(home) || w.namespace("home") != nil {
			return "it is there"
		}

		return ""
	})

	for _, name := range []string{"an adapter", "another one"} {
		w.must(pods[name].Process.Stop())
	}

	w.send(http.MethodDelete, "/clusters/"+lost, nil)
	w.send(http.MethodPost, "/clusters/"+lost+"/force-delete", map[string]string{"reason": "the test says so"})

	var cron batchv1.CronJob

	w.must(w.kube.Client.Get(w.t.Context(), kubeclient.ObjectKey{Namespace: space, Name: "hyperfleet-sweep"}, &cron))

	sweep := node.RunPod("sweep", cron.Spec.JobTemplate.Spec.Template, "HYPERFLEET_KUBE_CONFIG_PATH")
	pods["sweep"] = sweep

	if err := sweep.Process.Wait(w.t.Context()); err != nil {
		w.t.Fatalf("sweep: %v\n%s", err, sweep.Log(w.t))
	}

	w.eventually("what the other left is swept", func() string {
		if w.namespace("lost") != nil {
			return "its namespace is there: " + sweep.Log(w.t)
		}

		return ""
	})

	for name, pod := range pods {
		if said := pod.Log(w.t); strings.Contains(said, "orbidden") {
			w.t.Errorf("the account of %s lacks a right:\n%s", name, said)
		}
	}
}

// certificate makes the Secret with the API's certificate, which names the address of pods too, and
// gives the file of who vouches for it.
func (w *world) certificate() string {
	w.t.Helper()

	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()

	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	w.must(err)

	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	w.must(w.kube.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "hyperfleet-api-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"tls.crt": certificate, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "ca.crt": certificate,
		},
	}))
	w.write("ca.crt", string(certificate))

	w.caller = server.Client().Transport

	return filepath.Join(w.dir, "ca.crt")
}

func silver(name string) resource {
	return resource{Name: name, Spec: map[string]any{"tier": "silver"}}
}

// ready waits for a pod's readiness probe.
func (w *world) ready(name string, pod *kubelet.Pod) {
	w.t.Helper()
	w.eventually(name+" is ready", func() string {
		if pod.IsReady(w.t.Context()) {
			return ""
		}

		return pod.Process.LogTail()
	})
}
