{{- /* Written by `make charts` from the declarations of the settings: environment variable and value. */}}
{{- define "karpenter.variablesOfSettings" -}}
SIMULATED_FAULTS_FILE: simulatedFaultsFile
MACHINE_POWER_DIRECTORY: machinePowerDirectory
INSTANCE_TYPES_FILE_PATH: instanceTypesFilePath
KARPENTER_PROFILE: profile
LOG_FORMAT: logFormat
ENABLE_PROFILING: enableProfiling
DISABLE_LEADER_ELECTION: disableLeaderElection
LEADER_ELECTION_NAME: leaderElectionName
LEADER_ELECTION_NAMESPACE: leaderElectionNamespace
DISABLE_CONTROLLER_WARMUP: disableControllerWarmup
DISABLE_CLUSTER_STATE_OBSERVABILITY: disableClusterStateObservability
LEGACY_METRICS: legacyMetrics
NOTIFICATIONS_FILE: notificationsFile
KUBE_CLIENT_QPS: kubeClientQPS
KUBE_CLIENT_BURST: kubeClientBurst
PREFERENCE_POLICY: preferencePolicy
MIN_VALUES_POLICY: minValuesPolicy
PACKING: packing
NODE_FEE: nodeFee
CPU_SURPLUS: cpuSurplus
EXPOSURE: exposure
MAX_PODS_PER_NODE: maxPodsPerNode
INTERRUPTION_COST: interruptionCost
TERMINATING_PODS_WINDOW: terminatingPodsWindow
IGNORE_DRA_REQUESTS: ignoreDRARequests
SCHEDULER_CONFIG: schedulerConfig
BATCH_MAX_DURATION: batchMaxDuration
BATCH_IDLE_DURATION: batchIdleDuration
INCLUDE_UNTRIED_PODS: includeUntriedPods
NOMINATE_PODS: nominatePods
NOMINATION_QPS: nominationQPS
CLAIMS_PER_MINUTE: claimsPerMinute
DEFER_TO_CLUSTER_AUTOSCALER: deferToClusterAutoscaler
RECORD_PROBLEMS: recordProblems
RECORD_TRACE: recordTrace
MINIMUM_SAVING_RATIO: minimumSavingRatio
MINIMUM_NODE_AGE: minimumNodeAge
WAIT_FOR_ROLLOUTS: waitForRollouts
STABILIZATION_WINDOW: stabilizationWindow
EMPTY_DRIFTED_NODES_AT_LIMITS: emptyDriftedNodesAtLimits
WAIT_FOR_SLOW_REPLACEMENTS: waitForSlowReplacements
EXPIRATION_WINDOW: expirationWindow
LEGACY_NODE_REPAIR: legacyNodeRepair
CLUSTER_NAME: clusterName
CLUSTER_ENDPOINT: clusterEndpoint
CLUSTER_CA_BUNDLE: clusterCABundle
CLUSTER_DNS_IP: clusterDNSIP
SERVICE_CIDR: serviceCIDR
ISOLATED_VPC: isolatedVPC
EKS_CONTROL_PLANE: eksControlPlane
VM_MEMORY_OVERHEAD_PERCENT: vmMemoryOverheadPercent
INTERRUPTION_QUEUE: interruptionQueue
RESERVED_ENIS: reservedENIs
DISABLE_DRY_RUN: disableDryRun
LAUNCH_BATCH_TAG: launchBatchTag
ENABLE_ZONAL_SHIFT: enableZonalShift
AMI_REFRESH_INTERVAL: amiRefreshInterval
UBUNTU_IMAGE_PARAMETER: ubuntuImageParameter
SUBNET_REFRESH_INTERVAL: subnetRefreshInterval
SECURITY_GROUP_REFRESH_INTERVAL: securityGroupRefreshInterval
BOOTSTRAP_MODE: bootstrapMode
BOOTSTRAP_DEFAULT_CUSTOM: bootstrapDefaultCustom
BOOTSTRAP_TOKEN_TTL: bootstrapTokenTtl
BOOTSTRAP_TOKEN_DELIVERY: bootstrapTokenDelivery
BOOTSTRAP_TOKEN_GROUPS: bootstrapTokenGroups
SET_PROVIDER_ID: setProviderId
APPROVE_KUBELET_SERVING: approveKubeletServing
DEFAULT_INSTANCE_PROFILE: defaultInstanceProfile
DEFAULT_NODE_ROLE: defaultNodeRole
HISTORY_FILE: historyFile
HISTORY_MAX_AGE: historyMaxAge
HISTORY_MAX_BYTES: historyMaxBytes
HISTORY_COST_LABEL: historyCostLabel
HISTORY_INTERVAL: historyInterval
CONSOLE: console
CONSOLE_PORT: consolePort
CONSOLE_CERTIFICATE_DIRECTORY: consoleCertificateDirectory
{{- end }}
{{- define "karpenter.variablesOfIntervals" -}}
KARPENTER_GARBAGE_COLLECTION_INTERVAL: garbageCollection
KARPENTER_NODEPOOL_COUNTER_INTERVAL: nodepoolCounter
KARPENTER_PROVISIONING_RETRY_INTERVAL: provisioningRetry
KARPENTER_DISRUPTION_POLL_INTERVAL: disruptionPoll
KARPENTER_DISRUPTION_VALIDATION_INTERVAL: disruptionValidation
KARPENTER_DISRUPTION_RECHECK_INTERVAL: disruptionRecheck
KARPENTER_METRICS_REFRESH_INTERVAL: metricsRefresh
KARPENTER_SYNC_REPORT_DELAY: syncReportDelay
KARPENTER_LEASE_DURATION: leaseDuration
KARPENTER_LEASE_RENEW_DEADLINE: leaseRenewDeadline
KARPENTER_LEASE_RETRY_INTERVAL: leaseRetry
{{- end }}
{{- define "karpenter.gates" -}}
- {gate: NodeRepair, value: nodeRepair, lean: true, karpenter: false}
- {gate: ReservedCapacity, value: reservedCapacity, lean: true, karpenter: true}
- {gate: SpotToSpotConsolidation, value: spotToSpotConsolidation, lean: false, karpenter: false}
- {gate: NodeOverlay, value: nodeOverlay, lean: false, karpenter: false}
- {gate: StaticCapacity, value: staticCapacity, lean: false, karpenter: false}
- {gate: CapacityBuffer, value: capacityBuffer, lean: false, karpenter: false}
- {gate: TerminateFirstDrift, value: terminateFirstDrift, lean: false, karpenter: false}
- {gate: TerminateFirstRepair, value: terminateFirstRepair, lean: false, karpenter: false}
- {gate: PodDeletionCostManagement, value: podDeletionCostManagement, lean: false, karpenter: false}
- {gate: CapacitySchedule, value: capacitySchedule, lean: false, karpenter: false}
- {gate: GangScheduling, value: gangScheduling, lean: false, karpenter: false}
{{- end }}
{{- define "karpenter.awsGates" -}}
- {gate: NodeClassCEL, value: nodeClassCEL, lean: false, karpenter: false}
- {gate: DRANVIDIAGPU, value: draNVIDIAGPU, lean: false, karpenter: false}
- {gate: DRAEFA, value: draEFA, lean: false, karpenter: false}
- {gate: RebootForRepair, value: rebootForRepair, lean: false, karpenter: false}
{{- end }}
