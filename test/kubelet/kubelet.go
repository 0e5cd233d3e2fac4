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
	// T is the test. The pods are stopped when it ends.
	T         testing.TB
	Env       *kube.Env
	Namespace string
	// Binary is the program that all containers run.
	Binary string
	// EditFile edits the content of each mounted file. It may be nil.
	EditFile func(string) string

	pods []*Pod
}

// Pod is the process of a pod's first container.
type Pod struct {
	Process *procrun.Process
	// Ports holds the loopback address that replaces each port in the mounted files.
	Ports map[string]string

	labels        map[string]string
	container     corev1.Container
	logPath       string
	updateVolumes func()
	start         func()
}

// UpdateVolumes mounts the current content of the volumes, as kubelet does some time after a change of a
// ConfigMap or Secret.
func (p *Pod) UpdateVolumes() { p.updateVolumes() }

// WaitAndRestart waits until the process has exited, and starts it again. The process must exit without an
// error.
func (p *Pod) WaitAndRestart(t testing.TB) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	if err := p.Process.Wait(ctx); err != nil {
		t.Fatalf("wait for the exit of %s: %v\n%s", p.container.Name, err, p.Log(t))
	}

	p.start()
}

// listenPattern matches the listen address of the program in a configuration file.
var listenPattern = regexp.MustCompile(`(?i)(address: )"?:(\d+)"?`)

// RunDeployment runs a pod of a Deployment. kubeconfig is the environment variable with the path of the
// service account's kubeconfig. It replaces the token of real pods, which is at a fixed path that several
// processes on one host cannot share. variables are further environment variables.
func (n *Node) RunDeployment(name, kubeconfig string, variables ...string) *Pod {
	n.T.Helper()

	var deployment appsv1.Deployment

	n.getObject(name, &deployment)

	return n.RunPod(name, deployment.Spec.Template, kubeconfig, variables...)
}

// RunPod runs a pod. See RunDeployment for kubeconfig and variables.
func (n *Node) RunPod(name string, template corev1.PodTemplateSpec, kubeconfig string, variables ...string) *Pod {
	n.T.Helper()

	spec := template.Spec
	dir := n.T.TempDir()
	p := &Pod{labels: template.Labels, container: spec.Containers[0], Ports: map[string]string{}, logPath: filepath.Join(dir, "log")}
	paths := n.mountVolumes(p, dir, spec.Volumes)
	p.updateVolumes = func() { n.mountVolumes(p, dir, spec.Volumes) }

	args := make([]string, 0, len(p.container.Args))
	for _, arg := range p.container.Args {
		args = append(args, paths.Replace(arg))
	}

	environ, services := append([]string{"HOME=" + dir, "no_proxy=*"}, variables...), n.newServiceReplacer()
	for _, variable := range p.container.Env {
		environ = append(environ, variable.Name+"="+services.Replace(paths.Replace(variable.Value)))
	}

	// Without its service account's token, a pod does not call the Kubernetes API.
	if automount := spec.AutomountServiceAccountToken; automount == nil || *automount {
		n.getObject(spec.ServiceAccountName, &corev1.ServiceAccount{})

		account := n.Env.ServiceAccount(n.T, n.Namespace, spec.ServiceAccountName)
		environ = append(environ, kubeconfig+"="+n.Env.Kubeconfig(n.T, account))
	}

	p.start = func() {
		var err error

		p.Process, err = procrun.Start(n.T.Context(), procrun.Spec{
			Name: name, Path: n.Binary, Args: args, Dir: dir, LogPath: p.logPath, Env: environ,
		})
		n.failOnError(err)
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

// mountVolumes mounts the volumes, and returns a replacer of mount paths with the real paths.
func (n *Node) mountVolumes(p *Pod, dir string, volumes []corev1.Volume) *strings.Replacer {
	n.T.Helper()

	var (
		pairs    []string
		contents = map[string]map[string]string{}
	)

	for _, volumeMount := range p.container.VolumeMounts {
		target := filepath.Join(dir, "root", volumeMount.MountPath)
		n.failOnError(os.MkdirAll(target, 0o700))

		pairs = append(pairs, volumeMount.MountPath+"/", target+"/")

		for i := range volumes {
			if volumes[i].Name == volumeMount.Name && volumes[i].EmptyDir == nil {
				contents[target] = n.readVolume(&volumes[i])
			}
		}
	}

	paths, services := strings.NewReplacer(pairs...), n.newServiceReplacer()

	for target, files := range contents {
		for name, text := range files {
			text = services.Replace(paths.Replace(listenPattern.ReplaceAllStringFunc(text, p.newPortReplacer(n.T))))

			if n.EditFile != nil {
				text = n.EditFile(text)
			}

			files[name] = text
		}

		volume.Mount(n.T, target, files)
	}

	return paths
}

// newPortReplacer returns a function that replaces the port of a listen address with a free loopback address.
func (p *Pod) newPortReplacer(t testing.TB) func(string) string {
	t.Helper()

	return func(line string) string {
		parts := listenPattern.FindStringSubmatch(line)
		if p.Ports[parts[2]] == "" {
			p.Ports[parts[2]] = loopback.Address(t)
		}

		return parts[1] + p.Ports[parts[2]]
	}
}

// readVolume returns the files of a volume.
func (n *Node) readVolume(source *corev1.Volume) map[string]string {
	n.T.Helper()

	out := map[string]string{}

	switch {
	case source.ConfigMap != nil:
		var config corev1.ConfigMap

		n.getObject(source.ConfigMap.Name, &config)

		return config.Data
	case source.Secret != nil:
		var secret corev1.Secret

		n.getObject(source.Secret.SecretName, &secret)

		items := source.Secret.Items
		for name := range secret.Data {
			if source.Secret.Items == nil {
				items = append(items, corev1.KeyToPath{Key: name, Path: name})
			}
		}

		for _, item := range items {
			value, ok := secret.Data[item.Key]
			if !ok {
				n.T.Fatalf("mount volume %s: Secret %s has no key %s", source.Name, secret.Name, item.Key)
			}

			out[item.Path] = string(value)
		}
	default:
		n.T.Fatalf("mount volume %s: only ConfigMaps, Secrets and emptyDirs are supported", source.Name)
	}

	return out
}

// newServiceReplacer returns a replacer of the URLs of Services with the addresses of running pods.
func (n *Node) newServiceReplacer() *strings.Replacer {
	n.T.Helper()

	var (
		pairs []string
		all   corev1.ServiceList
	)

	n.failOnError(n.Env.Client.List(n.T.Context(), &all, client.InNamespace(n.Namespace)))

	for i := range all.Items {
		service := &all.Items[i]

		for _, pod := range n.pods {
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.labels)) {
				continue
			}

			for _, port := range service.Spec.Ports {
				if address := pod.addressOf(port.TargetPort.String()); address != "" {
					pairs = append(pairs, fmt.Sprintf("//%s:%d", service.Name, port.Port), "//"+address)
				}
			}
		}
	}

	return strings.NewReplacer(pairs...)
}

// addressOf returns the address that replaces a port of the container. The port is a name or a number.
func (p *Pod) addressOf(port string) string {
	for _, containerPort := range p.container.Ports {
		if number := strconv.Itoa(int(containerPort.ContainerPort)); port == containerPort.Name || port == number {
			return p.Ports[number]
		}
	}

	return p.Ports[port]
}

// IsReady returns true if the readiness probe succeeds.
func (p *Pod) IsReady(ctx context.Context) bool {
	probe := p.container.ReadinessProbe.HTTPGet
	httpClient := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+p.addressOf(probe.Port.String())+probe.Path, http.NoBody)
	if err != nil {
		return false
	}

	response, err := httpClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close() //nolint:errcheck // the body is not read

	return response.StatusCode == http.StatusOK
}

// Log returns the log of the process.
func (p *Pod) Log(t testing.TB) string {
	t.Helper()

	text, err := os.ReadFile(p.logPath)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// getObject reads an object of the namespace.
func (n *Node) getObject(name string, into client.Object) {
	n.T.Helper()

	if err := n.Env.Client.Get(n.T.Context(), client.ObjectKey{Namespace: n.Namespace, Name: name}, into); err != nil {
		n.T.Fatal(err)
	}
}

func (n *Node) failOnError(err error) {
	n.T.Helper()

	if err != nil {
		n.T.Fatal(err)
	}
}
