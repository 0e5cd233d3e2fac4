// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// pod is the program of a Deployment, run as a kubelet would: with the container's arguments
// and variables, its ConfigMap for a file, and the token of its account. Ports are free ones
// of loopback.
type pod struct {
	// ports by the numbers that the Deployment has.
	ports   map[string]string
	process *procrun.Process
	log     string
}

var anyPort = regexp.MustCompile(`(bindAddress: )"?:(\d+)"?`)

// run starts the program of a Deployment, with further variables as they are.
func run(t *testing.T, env *kube.Env, binary, namespace, name string, variables ...string) *pod {
	t.Helper()

	var deployment appsv1.Deployment
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &deployment); err != nil {
		t.Fatal(err)
	}

	spec := deployment.Spec.Template.Spec
	container := spec.Containers[0]
	p := &pod{ports: map[string]string{}}
	dir := t.TempDir()
	config := p.mount(t, env, dir, namespace, &spec)

	args := make([]string, 0, len(container.Args))
	for _, arg := range container.Args {
		args = append(args, strings.Replace(arg, container.VolumeMounts[0].MountPath, config, 1))
	}

	account := env.ServiceAccount(t, namespace, spec.ServiceAccountName)
	environ := append([]string{"KUBECONFIG=" + env.Kubeconfig(t, account), "HOME=" + dir}, variables...)

	for _, variable := range container.Env {
		environ = append(environ, variable.Name+"="+variable.Value)
	}

	p.log = filepath.Join(dir, "log")

	var err error

	p.process, err = procrun.Start(t.Context(), procrun.Spec{
		Name: name, Path: binary, Args: args, Dir: dir, LogPath: p.log, Env: environ,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := p.process.Stop(); err != nil {
			t.Errorf("stop %s: %v", name, err)
		}
	})

	return p
}

// playJobs runs the Jobs of a namespace that have not ended, and gives them their end.
func playJobs(t *testing.T, env *kube.Env, binary, namespace string) {
	t.Helper()

	var jobs batchv1.JobList
	if err := env.Client.List(t.Context(), &jobs, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	for i := range jobs.Items {
		job := &jobs.Items[i]
		if len(job.Status.Conditions) > 0 || job.DeletionTimestamp != nil {
			continue
		}

		spec := job.Spec.Template.Spec
		account := env.ServiceAccount(t, namespace, spec.ServiceAccountName)

		cmd := exec.CommandContext(t.Context(), binary, spec.Containers[0].Args...)
		cmd.Env = []string{"KUBECONFIG=" + env.Kubeconfig(t, account), "HOME=" + t.TempDir()}

		said, err := cmd.CombinedOutput()
		t.Logf("job %s: %v\n%s", job.Name, err, said)
		kube.EndJob(job, err != nil)

		if err := env.Client.Status().Update(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
}

// mount writes down the first volume, a ConfigMap, and gives the folder.
func (p *pod) mount(t *testing.T, env *kube.Env, dir, namespace string, spec *corev1.PodSpec) string {
	t.Helper()

	var config corev1.ConfigMap

	key := client.ObjectKey{Namespace: namespace, Name: spec.Volumes[0].ConfigMap.Name}
	if err := env.Client.Get(t.Context(), key, &config); err != nil {
		t.Fatal(err)
	}

	folder := filepath.Join(dir, "config")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}

	for name, text := range config.Data {
		text = anyPort.ReplaceAllStringFunc(text, func(line string) string {
			parts := anyPort.FindStringSubmatch(line)
			p.ports[parts[2]] = loopback.Address(t)

			return parts[1] + p.ports[parts[2]]
		})
		text = strings.ReplaceAll(text, "/opt/hyperfleet/bootstrap-service-x64", released(t, "bootstrap-service-linux-amd64"))
		text = strings.ReplaceAll(text, "/opt/hyperfleet/bootstrap-service-arm64", released(t, "bootstrap-service-linux-arm64"))

		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return folder
}

// ready says whether the readiness probe would succeed.
func (p *pod) ready(t *testing.T) bool {
	t.Helper()

	caller := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.ports["8081"]+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	response, err := caller.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()

	return response.StatusCode == http.StatusOK
}

// said is all that the program has logged.
func (p *pod) said(t *testing.T) string {
	t.Helper()

	text, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}
