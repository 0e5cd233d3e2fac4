// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const (
	reasonChart    = "the chart sets it"
	reasonImage    = "the chart has the image of its release"
	reasonProvided = "see docs/operate/monitoring.md"
	hintScale      = "only the leader works, so more than two replicas do not help: raise events.parallelism, and set enabled: false"
	hintTracing    = "set OTEL_EXPORTER_OTLP_ENDPOINT in env, and enabled: false"
)

// isHelm reports whether a file has values of one of upstream's Helm charts. Only such a file has a program's
// configuration below one of these keys. In all other files, the configuration is at the top level.
func isHelm(keys map[string]any) bool {
	_, hasConfig := keys["config"].(map[string]any)

	return has(keys, "adapterConfig") || has(keys, "adapterTaskConfig") || hasConfig
}

// convertHelm converts the values of one of upstream's charts to those of the chart hyperfleet-platform.
func (c *conversion) convertHelm() {
	config, _ := c.source["config"].(map[string]any)

	switch {
	case config == nil:
		c.result.Kind = "Helm values of an adapter"
		c.convertAdapterValues()
	case has(config, "resourceType") || has(config, "messageDecision") || has(config, "pollInterval"):
		c.result.Kind = "Helm values of Sentinel"
		c.convertSentinelValues(config)
	default:
		c.result.Kind = "Helm values of the API"
		c.convertAPIValues(config)
	}
}

// newPodRules returns the rules of values that all charts have. The settings of the pod go below the key pod.
func newPodRules(pod string) rules {
	out := rules{
		"replicaCount":      rename(pod + ".replicas"),
		"image.registry":    omit(reasonImage),
		"image.repository":  omit(reasonImage),
		"image.tag":         omit(reasonImage, ""),
		"image.pullPolicy":  rename("image.pullPolicy"),
		"imagePullSecrets":  convertPullSecrets,
		"extraEnv":          nonEmpty(pod + ".env"),
		"env":               nonEmpty(pod + ".env"),
		"extraVolumes":      nonEmpty(pod + ".volumes"),
		"extraVolumeMounts": nonEmpty(pod + ".volumeMounts"),
		"autoscaling":       switched("autoscaling", hintScale),

		"monitoring.podMonitoring":  convertMonitor("additionalLabels"),
		"monitoring.serviceMonitor": convertMonitor("labels"),
		"monitoring.prometheusRule": omit(reasonProvided),
		"monitoring.dashboard":      omit(reasonProvided),
		"monitoring.tracing":        switched("tracing", hintTracing),
		"tracing":                   switched("tracing", hintTracing),
		"sidecars":                  only("the chart has no sidecars: put the program into a pod of its own", []any{}),
		"nativeSidecars":            only("the chart has no sidecars: put the program into a pod of its own", []any{}),
		"sidecarContainers":         only("the chart has no sidecars: put the program into a pod of its own", []any{}),
		"initContainers":            only("the chart has no init containers", []any{}),
	}

	for _, key := range []string{"resources", "nodeSelector", "tolerations", "affinity", "podAnnotations", "priorityClassName"} {
		out[key] = nonEmpty(pod + "." + key)
	}

	for _, key := range []string{
		"nameOverride", "fullnameOverride", "ports", "containerPorts", "serviceAccount", "podLabels", "labels",
		"podSecurityContext", "securityContext", "service", "lifecycle", "strategy", "terminationGracePeriodSeconds",
		"podDisruptionBudget", "livenessProbe", "readinessProbe", "startupProbe", "revisionHistoryLimit",
		"minReadySeconds", "command", "args",
	} {
		out[key] = omit(reasonChart, "", map[string]any{}, []any{})
	}

	return out
}

// nonEmpty copies a value that is not empty to another path.
func nonEmpty(target string) rule {
	return func(c *conversion, _ strictyaml.Path, value any) {
		if !contains([]any{"", []any{}, map[string]any{}}, value) {
			c.set(target, value)
		}
	}
}

// switched accepts settings with enabled: false, and reports others.
func switched(what, hint string) rule {
	return func(c *conversion, path strictyaml.Path, value any) {
		settings, _ := value.(map[string]any)
		if settings["enabled"] == true {
			c.addProblem(path.Append("enabled"), what+" has no counterpart in the chart", hint)
		}
	}
}

func convertPullSecrets(c *conversion, _ strictyaml.Path, value any) {
	if list, ok := value.([]any); ok && len(list) > 0 {
		c.set("image.pullSecrets", list)
	}
}

// convertMonitor turns on the chart's PodMonitor. labels is the key of its labels in upstream's chart.
func convertMonitor(labels string) rule {
	return func(c *conversion, _ strictyaml.Path, value any) {
		settings, _ := value.(map[string]any)
		if settings["enabled"] != true {
			return
		}

		c.set("monitoring.enabled", true)

		if found, ok := settings[labels].(map[string]any); ok && len(found) > 0 {
			c.set("monitoring.labels", found)
		}
	}
}

// inner returns the conversion of a part of the file into an output of its own, with the same result.
func (c *conversion) inner(prefix strictyaml.Path, source map[string]any, keyOf func(string) string) *conversion {
	return &conversion{
		doc: c.doc, source: source, prefix: prefix, keyOf: keyOf, out: map[string]any{}, result: c.result,
	}
}

func (c *conversion) convertAPIValues(config map[string]any) {
	table := newPodRules("parts.api")
	table["config"] = ignore
	table["database"] = convertChartDatabase
	table["autoscaling"] = convertAutoscaling
	table["validationSchema"] = switched("validationSchema",
		"mount the document with parts.api.volumes and volumeMounts, set spec_schemas in parts.api.config, and enabled: false")
	c.convert(table)

	if name := config["existingConfigMap"]; name != nil && name != "" {
		c.addProblem(strictyaml.Path{"config", "existingConfigMap"}, "the chart makes its ConfigMap itself",
			"convert the configuration in the ConfigMap, and put it into parts.api.config")
	}

	delete(config, "existingConfigMap")

	inner := c.inner(strictyaml.Path{"config"}, config, nil)
	inner.convertAPI()

	c.set("parts.api.config", inner.out)
}

// convertAutoscaling converts the limits and targets of a HorizontalPodAutoscaler.
func convertAutoscaling(c *conversion, path strictyaml.Path, value any) {
	c.convertFields(path, value, rules{
		"enabled": ignore, "minReplicas": ignore, "maxReplicas": ignore, "targetCPUUtilizationPercentage": ignore,
		"targetMemoryUtilizationPercentage": ignore,
	})

	settings, _ := value.(map[string]any)
	if settings["enabled"] != true {
		return
	}

	if settings["maxReplicas"] == nil {
		c.addProblem(path.Append("enabled"), "the limit is a default of upstream's chart", "set autoscaling.maxReplicas")

		return
	}

	var targets []any

	for _, resource := range []string{"CPU", "Memory"} {
		if share := settings["target"+resource+"UtilizationPercentage"]; share != nil {
			targets = append(targets, map[string]any{"type": "Resource", "resource": map[string]any{
				"name": strings.ToLower(resource), "target": map[string]any{"type": "Utilization", "averageUtilization": share},
			}})
		}
	}

	if targets != nil {
		c.set("parts.api.autoscaling.metrics", targets)
	}

	for _, key := range []string{"minReplicas", "maxReplicas"} {
		if settings[key] != nil {
			c.set("parts.api.autoscaling."+key, settings[key])
		}
	}
}

// convertChartDatabase explains the Secret that the chart needs.
func convertChartDatabase(c *conversion, path strictyaml.Path, value any) {
	const hint = "create the Secret hyperfleet-database with the key url (postgres://…)"

	settings, _ := value.(map[string]any)
	own, _ := settings["postgresql"].(map[string]any)
	external, _ := settings["external"].(map[string]any)

	switch {
	case external["enabled"] == true:
		c.note(path.Append("external"), "the connection is one URL in a Secret", hint)
	case own["enabled"] == true:
		c.addProblem(path.Append("postgresql", "enabled"), "the chart does not install PostgreSQL",
			hint+", and set enabled: false")
	}
}

func (c *conversion) convertSentinelValues(config map[string]any) {
	broker, _ := c.source["broker"].(map[string]any)
	table := newPodRules("ignored")
	table["config"], table["broker"], table["existingSecret"] = ignore, ignore, ignore
	table["subscriber"] = ignore
	c.convert(table)

	out := c.inner(strictyaml.Path{"config"}, snakeKeys(config), camelCase)
	if topic := broker["topic"]; topic != nil {
		setAt(out.source, []string{"clients", "broker", "topic"}, topic)
	}

	out.convertSentinel()

	if broker != nil {
		settings := map[string]any{"broker": snakeKeys(broker)}
		inner, _ := settings["broker"].(map[string]any)
		delete(inner, "topic")

		messages := c.inner(nil, settings, camelCase)
		messages.convertBroker()
		maps.Copy(out.out, messages.out)
	}

	c.out = out.out
	c.note(nil, "the chart does not install Sentinel, because adapters read the change feed of the API",
		"if other programs need the events, run `hyperfleet-platform sentinel` in a Deployment with this configuration")
}

func (c *conversion) convertAdapterValues() {
	name := "adapter"
	config, _ := c.get("adapterConfig.yaml", nil).(map[string]any)

	if identity, ok := config["adapter"].(map[string]any); ok && identity["name"] != nil {
		name = fmt.Sprint(identity["name"])
		delete(identity, "name") // the chart's key
	}

	to := "adapters." + name
	table := newPodRules(to)
	maps.Copy(table, rules{
		"adapterConfig.create":            ignore,
		"adapterConfig.yaml":              ignore,
		"adapterConfig.configMapName":     only("put the configuration into "+to+".config", ""),
		"adapterConfig.files":             convertFiles("adapters.NAME.config"),
		"adapterConfig.hyperfleetApi":     convertAPIOfAdapter,
		"adapterConfig.log.level":         rename(to + ".config.log.level"),
		"adapterTaskConfig.create":        ignore,
		"adapterTaskConfig.configMapName": only("pass the task file with --set-file "+to+".task=FILE", ""),
		"adapterTaskConfig.files":         convertFiles("--set-file adapters.NAME.task"),
		"adapterTaskConfig.external":      convertFiles("--set-file adapters.NAME.task"),
		"adapterTaskConfig.yaml":          convertTask(to),
		"broker":                          convertAdapterBroker,
		"rbac.create":                     ignore,
		"rbac.rules":                      nonEmpty(to + ".rules"),
		"rbac.resources":                  convertResources,
	})
	c.convert(table)

	for key, value := range config {
		c.set(to+".config."+key, merge(c.getOut(to+".config."+key), value))
	}
}

// getOut returns the value at a path of the output, or nil.
func (c *conversion) getOut(path string) any {
	written := conversion{source: c.out}

	return written.get(path, nil)
}

// merge returns the value with the fields that were set before.
func merge(before, value any) any {
	earlier, isMap := before.(map[string]any)
	fields, areMaps := value.(map[string]any)

	if isMap && areMaps {
		out := maps.Clone(fields)
		maps.Copy(out, earlier)

		return out
	}

	return value
}

func convertFiles(target string) rule {
	return func(c *conversion, path strictyaml.Path, value any) {
		files, _ := value.(map[string]any)
		if len(files) > 0 {
			c.note(path, "left out: the files are not in the values: "+strings.Join(slices.Sorted(maps.Keys(files)), ", "),
				"convert each file with this command, and pass it as "+target)
		}
	}
}

func convertTask(target string) rule {
	return func(c *conversion, path strictyaml.Path, value any) {
		text, err := strictyaml.Encode(value)
		if err != nil {
			c.addProblem(path, err.Error(), "")

			return
		}

		c.set(target+".task", string(text))
		c.note(path, "the task file is copied as it is", "convert it as a file of its own with this command")
	}
}

func convertAPIOfAdapter(c *conversion, path strictyaml.Path, value any) {
	settings, _ := value.(map[string]any)
	if auth, _ := settings["auth"].(map[string]any); auth["enabled"] == true {
		c.note(path.Append("auth"), "left out: the chart mounts the token if the API has issuers", "see docs/guides/platform.md")
	}

	if url := settings["baseUrl"]; url != nil {
		c.note(path.Append("baseUrl"), "left out: the adapters of a release use its API", "")
	}
}

func convertAdapterBroker(c *conversion, path strictyaml.Path, value any) {
	settings, _ := value.(map[string]any)
	pubsub, _ := settings["googlepubsub"].(map[string]any)

	for _, field := range slices.Sorted(maps.Keys(pubsub)) {
		if text, ok := pubsub[field].(string); ok && text != "" && settings["type"] != "rabbitmq" {
			c.addProblem(path.Append("googlepubsub", field), "Google Pub/Sub is not supported", hintPubSub)

			return
		}
	}

	if settings["type"] == "googlepubsub" {
		c.addProblem(path.Append("type"), "Google Pub/Sub is not supported", hintPubSub)

		return
	}

	c.note(path, "left out: the adapter reads the change feed of the API",
		"to keep RabbitMQ, set clients.broker in the adapter's config, and mount the broker's file (BROKER_CONFIG_FILE)")
}

func convertResources(c *conversion, path strictyaml.Path, _ any) {
	c.note(path, "left out: rules name verbs and API groups, too",
		"`hyperfleet-platform adapter validate --output rbac` prints the rules of a task file")
}

var (
	upperPattern = regexp.MustCompile(`[A-Z]`)
	lowerPattern = regexp.MustCompile(`_[a-z]`)
)

// snakeKeys returns a copy of the value whose keys are in snake_case. Keys below messageData are the user's.
func snakeKeys(values map[string]any) map[string]any {
	out := map[string]any{}

	for key, value := range values {
		inner, isMap := value.(map[string]any)
		if isMap && key != "messageData" {
			value = snakeKeys(inner)
		}

		out[upperPattern.ReplaceAllStringFunc(key, func(letter string) string { return "_" + strings.ToLower(letter) })] = value
	}

	return out
}

func camelCase(key string) string {
	return lowerPattern.ReplaceAllStringFunc(key, func(found string) string { return strings.ToUpper(found[1:]) })
}
