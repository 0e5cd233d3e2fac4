// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/kubelet/volume"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// Node runs the pods of a namespace.
type Node struct {
	// T ends the pods with it.
	T         testing.TB
	Env       *kube.Env
	Namespace string
	// Binary is what all images hold.
	Binary string
	// Change is done to the texts of files; may be nil.
	Change func(string) string

	pods []*Pod
}

// Pod is the program of a pod's first container.
type Pod struct {
	Process *procrun.Process
	// Ports are the addresses in the place of the ports that the files name.
	Ports map[string]string

	labels    map[string]string
	container corev1.Container
	log       string
	mount     func()
	start     func()
}

// Mount mounts what the volumes are by now, as kubelet does some time after a ConfigMap or a
// Secret was changed.
func (p *Pod) Mount() { p.mount() }

// Restarted waits until the program ends, as it has to without an error, and starts it anew.
func (p *Pod) Restarted(t testing.TB) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	if err := p.Process.Wait(ctx); err != nil {
		t.Fatalf("%s was to end without an error: %v\n%s", p.container.Name, err, p.Said(t))
	}

	p.start()
}

// listens is where a file says what port the program listens on.
var listens = regexp.MustCompile(`(?i)(address: )"?:(\d+)"?`)

// Deployment runs a pod of a Deployment. kubeconfig is the variable that names its account's
// kubeconfig to the program: pods have a token in a fixed place, which only one process of a
// machine could have. Further variables are as they are.
func (n *Node) Deployment(name, kubeconfig string, variables ...string) *Pod {
	n.T.Helper()

	var deployment appsv1.Deployment

	n.get(name, &deployment)

	return n.Run(name, deployment.Spec.Template, kubeconfig, variables...)
}

// Run runs a pod.
func (n *Node) Run(name string, template corev1.PodTemplateSpec, kubeconfig string, variables ...string) *Pod {
	n.T.Helper()

	spec := template.Spec
	dir := n.T.TempDir()
	p := &Pod{labels: template.Labels, container: spec.Containers[0], Ports: map[string]string{}, log: filepath.Join(dir, "log")}
	paths := n.mount(p, dir, spec.Volumes)
	p.mount = func() { n.mount(p, dir, spec.Volumes) }

	args := make([]string, 0, len(p.container.Args))
	for _, arg := range p.container.Args {
		args = append(args, paths.Replace(arg))
	}

	environ, services := append([]string{"HOME=" + dir, "no_proxy=*"}, variables...), n.services()
	for _, variable := range p.container.Env {
		environ = append(environ, variable.Name+"="+services.Replace(paths.Replace(variable.Value)))
	}

	// A pod without an account of its own, or without its token, has nothing to say to Kubernetes.
	if automount := spec.AutomountServiceAccountToken; automount == nil || *automount {
		n.get(spec.ServiceAccountName, &corev1.ServiceAccount{})

		account := n.Env.ServiceAccount(n.T, n.Namespace, spec.ServiceAccountName)
		environ = append(environ, kubeconfig+"="+n.Env.Kubeconfig(n.T, account))
	}

	p.start = func() {
		var err error

		p.Process, err = procrun.Start(n.T.Context(), procrun.Spec{
			Name: name, Path: n.Binary, Args: args, Dir: dir, LogPath: p.log, Env: environ,
		})
		n.must(err)
	}

	p.start()
	n.T.Cleanup(func() {
		if err := p.Process.Stop(); err != nil && spec.RestartPolicy != corev1.RestartPolicyNever {
			n.T.Errorf("stop %s: %v", name, err)
		}
	})

	n.pods = append(n.pods, p)

	return p
}

// mount mounts the volumes, and gives where their paths are.
func (n *Node) mount(p *Pod, dir string, volumes []corev1.Volume) *strings.Replacer {
	n.T.Helper()

	var (
		pairs []string
		texts = map[string]map[string]string{}
	)

	for _, mounted := range p.container.VolumeMounts {
		place := filepath.Join(dir, "root", mounted.MountPath)
		n.must(os.MkdirAll(place, 0o700))

		pairs = append(pairs, mounted.MountPath+"/", place+"/")

		for i := range volumes {
			if volumes[i].Name == mounted.Name && volumes[i].EmptyDir == nil {
				texts[place] = n.files(&volumes[i])
			}
		}
	}

	paths, services := strings.NewReplacer(pairs...), n.services()

	for place, files := range texts {
		for name, text := range files {
			text = services.Replace(paths.Replace(listens.ReplaceAllStringFunc(text, p.listen(n.T))))

			if n.Change != nil {
				text = n.Change(text)
			}

			files[name] = text
		}

		volume.Mount(n.T, place, files)
	}

	return paths
}

// listen puts an address of this machine in the place of a port that a file names.
func (p *Pod) listen(t testing.TB) func(string) string {
	t.Helper()

	return func(line string) string {
		parts := listens.FindStringSubmatch(line)
		if p.Ports[parts[2]] == "" {
			p.Ports[parts[2]] = loopback.Address(t)
		}

		return parts[1] + p.Ports[parts[2]]
	}
}

// files are those of a volume.
func (n *Node) files(of *corev1.Volume) map[string]string {
	n.T.Helper()

	out := map[string]string{}

	switch {
	case of.ConfigMap != nil:
		var config corev1.ConfigMap

		n.get(of.ConfigMap.Name, &config)

		return config.Data
	case of.Secret != nil:
		var secret corev1.Secret

		n.get(of.Secret.SecretName, &secret)

		items := of.Secret.Items
		for name := range secret.Data {
			if of.Secret.Items == nil {
				items = append(items, corev1.KeyToPath{Key: name, Path: name})
			}
		}

		for _, item := range items {
			value, ok := secret.Data[item.Key]
			if !ok {
				n.T.Fatalf("volume %s: secret %s has no %s", of.Name, secret.Name, item.Key)
			}

			out[item.Path] = string(value)
		}
	default:
		n.T.Fatalf("volume %s: only ConfigMaps, Secrets and empty folders are mounted here", of.Name)
	}

	return out
}

// services leads from Services to the pods that run already.
func (n *Node) services() *strings.Replacer {
	n.T.Helper()

	var (
		pairs []string
		all   corev1.ServiceList
	)

	n.must(n.Env.Client.List(n.T.Context(), &all, client.InNamespace(n.Namespace)))

	for i := range all.Items {
		service := &all.Items[i]

		for _, pod := range n.pods {
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.labels)) {
				continue
			}

			for _, port := range service.Spec.Ports {
				if address := pod.at(port.TargetPort.String()); address != "" {
					pairs = append(pairs, fmt.Sprintf("//%s:%d", service.Name, port.Port), "//"+address)
				}
			}
		}
	}

	return strings.NewReplacer(pairs...)
}

// at is the address of a port of the container, by its name or number.
func (p *Pod) at(port string) string {
	for _, one := range p.container.Ports {
		if number := strconv.Itoa(int(one.ContainerPort)); port == one.Name || port == number {
			return p.Ports[number]
		}
	}

	return p.Ports[port]
}

// Ready says whether the readiness probe succeeds.
func (p *Pod) Ready(ctx context.Context) bool {
	probe := p.container.ReadinessProbe.HTTPGet
	caller := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.at(probe.Port.String())+probe.Path, http.NoBody)
	if err != nil {
		return false
	}

	response, err := caller.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close() //nolint:errcheck // nothing is read of it

	return response.StatusCode == http.StatusOK
}

// Said is all that the program has logged.
func (p *Pod) Said(t testing.TB) string {
	t.Helper()

	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// get reads an object of the namespace.
func (n *Node) get(name string, into client.Object) {
	n.T.Helper()

	if err := n.Env.Client.Get(n.T.Context(), client.ObjectKey{Namespace: n.Namespace, Name: name}, into); err != nil {
		n.T.Fatal(err)
	}
}

func (n *Node) must(err error) {
	n.T.Helper()

	if err != nil {
		n.T.Fatal(err)
	}
}
