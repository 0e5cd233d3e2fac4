// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"fmt"
	"io"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"github.com/spf13/cobra"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

const (
	outputRBAC = "rbac"
	// namePrefix is the prefix of the names of ServiceAccounts and roles.
	namePrefix = "hyperfleet-adapter"
)

// clusterRBAC has the values of the manifests for one cluster.
type clusterRBAC struct {
	// Adapter and Cluster describe the adapter and its cluster in the comment.
	Adapter, Cluster string
	Name, Namespace  string
	Rules            []task.Rule
}

// manifests is the template of the manifests for one cluster.
const manifests = `# Permissions of {{ .Adapter }} on its {{ .Cluster }}. They are the minimum that its task file needs.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .Name }}
  namespace: {{ .Namespace }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .Name }}
rules:
{{- range .Rules }}
- apiGroups: [{{ if .Group }}{{ .Group }}{{ else }}""{{ end }}]
  resources: [{{ .Resource }}]
  verbs: [{{ list .Verbs }}]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .Name }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .Name }}
subjects:
- kind: ServiceAccount
  name: {{ .Name }}
  namespace: {{ .Namespace }}
`

// printRBAC prints the RBAC manifests that the task files need on the cluster and on the hub. If a file is
// invalid, it prints the problems to standard error.
func printRBAC(cmd *cobra.Command, files []string, namespace string) error {
	deployment, err := loadDeployment(cmd, task.NewDeploymentSpec(task.FileRequired))

	out := &report{Files: files, Problems: strictyaml.Problems{}, Warnings: strictyaml.Problems{}}
	out.add("configuration", err)

	rulesByTransport := map[string][]task.Rule{}

	for _, file := range files {
		loaded, err := task.LoadFile(file, deployment)
		out.add(file, err)

		for _, name := range []string{transport.Kubernetes, transport.Maestro} {
			if err != nil {
				break
			}

			rules, err := loaded.RequiredRules(name)
			out.add(file, err)

			rulesByTransport[name] = append(rulesByTransport[name], rules...)
		}
	}

	if len(out.Problems) > 0 {
		if err := out.print(cmd.ErrOrStderr()); err != nil {
			return err
		}

		return cli.Failed()
	}

	adapter, name := "the adapter", namePrefix
	if deployment != nil {
		adapter, name = "the adapter "+deployment.Adapter.Name, namePrefix+"-"+deployment.Adapter.Name
	}

	return printManifests(cmd.OutOrStdout(), []clusterRBAC{
		{adapter, "cluster", name, namespace, task.MergeRules(rulesByTransport[transport.Kubernetes])},
		{adapter, "hub", name, namespace, task.MergeRules(rulesByTransport[transport.Maestro])},
	})
}

// printManifests prints the manifests of each cluster that has rules.
func printManifests(w io.Writer, all []clusterRBAC) error {
	text, err := template.New("rbac").Funcs(template.FuncMap{
		"list": func(verbs []string) string { return strings.Join(verbs, ", ") },
	}).Parse(manifests)
	if err != nil {
		return fmt.Errorf("parse template: %w", err)
	}

	separator := ""

	for _, cluster := range all {
		if len(cluster.Rules) == 0 {
			continue
		}

		if _, err := io.WriteString(w, separator); err != nil {
			return err
		}

		if err := text.Execute(w, cluster); err != nil {
			return err
		}

		separator = "---\n"
	}

	return nil
}
